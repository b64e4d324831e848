// Package octet_test holds the rules of the house: which room may import which,
// how large a function may grow, and which calls have no place where.
package octet_test

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// arrows is every import between rooms that may exist, with its reason. A room
// that is not listed imports nothing of ours.
var arrows = map[string]map[string]string{
	"cmd/launch": {
		"cluster": "the operator's command starts groups",
		"rank":    "the binary is a rank, too, when it is told so",
		"model":   "flags are model options; prompts need the tokenizer",
	},
	"cmd/rankd": {
		"cluster": "one rank process, with its transport and gossip chosen",
	},
	"cluster": {
		"rank":           "the master speaks the control protocol that rank owns",
		"model":          "requests become plans",
		"collective":     "one verdict function for Comm and master",
		"collective/mem": "virtual ranks talk through memory",
		"collective/tcp": "rank processes talk over TCP",
		"handshake":      "the device that a rank is given",
	},
	"rank": {
		"model":          "a rank runs the forward pass",
		"collective":     "a rank owns its communicator",
		"collective/tcp": "a rank process links over TCP unless told otherwise",
		"handshake":      "a rank brings its device up first",
	},
	"model": {
		"collective":      "peers are reached through Comm only",
		"internal/kernel": "arithmetic",
	},
	"collective": {
		"internal/kernel": "the reduction tree and rounding have one home",
	},
	"collective/mem":            {"collective": "implements Transport and Lane"},
	"collective/tcp":            {"collective": "implements Transport and Lane"},
	"collective/collectivetest": {"collective": "checks any Transport"},
	"handshake":                 {"internal/kernel": "arithmetic of device workloads"},
}

// ratchet is the list of functions longer than functionLines, with the length
// that each may not exceed. It only shrinks.
var ratchet = map[string]int{}

const (
	functionLines = 70
	fileLines     = 500
	packageFiles  = 15
	lineColumns   = 100
)

// source is one Go file of the house.
type source struct {
	path string // slash separated, from the root
	test bool
	file *ast.File
	set  *token.FileSet
}

func (s source) room() string { return path.Dir(s.path) }

func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && (name == "testdata" || name == "tools" || p != "." && name[0] == '.') {
			return fs.SkipDir
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, p, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		all = append(all, source{filepath.ToSlash(p), strings.HasSuffix(name, "_test.go"), f, set})
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return all
}

func TestImportsFollowTheArrows(t *testing.T) {
	for _, s := range sources(t) {
		for _, imp := range s.file.Imports {
			to, ours := strings.CutPrefix(strings.Trim(imp.Path.Value, `"`), "octet/")
			if !ours || to == s.room() {
				continue
			}
			if s.test && (s.room() == "." || testOnly(s.room(), to)) {
				continue
			}
			_, ok := arrows[s.room()][to]
			require.True(t, ok, "%s imports %s: no such arrow (see arrows in house_test.go)", s.path, to)
		}
	}
}

// testOnly lists what tests of a room may import beyond its arrows: the
// in-memory transport and the conformance kit.
func testOnly(from, to string) bool {
	kit := to == "collective/mem" || to == "collective/collectivetest"
	return kit && (strings.HasPrefix(from, "collective") || from == "model" || from == "rank") ||
		from == "collective/collectivetest" && to == "internal/kernel" ||
		from == "cluster" && to == "internal/kernel"
}

func TestMemberlistIsImportedByOneFile(t *testing.T) {
	var users []string
	for _, s := range sources(t) {
		for _, imp := range s.file.Imports {
			if strings.Contains(imp.Path.Value, "hashicorp/memberlist") && !s.test {
				users = append(users, s.path)
			}
		}
	}
	require.Equal(t, []string{"cluster/gossip.go"}, users)
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	said := map[string]bool{}
	for _, s := range sources(t) {
		if s.test && s.room() != "." {
			continue
		}
		said[s.room()] = said[s.room()] || s.file.Doc != nil && len(s.file.Doc.Text()) > 60
	}
	for room, ok := range said {
		require.True(t, ok, "package %s has no comment that says what it is for", room)
	}
}

func TestExportedNamesAreDocumented(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && exportedReceiver(d) && d.Doc == nil && !conventional(d) {
					t.Errorf("%s: %s has no comment", s.set.Position(d.Pos()), d.Name.Name)
				}
			case *ast.GenDecl:
				undocumentedSpecs(t, s, d)
			}
		}
	}
}

// conventional methods are known to every reader by their interface.
func conventional(d *ast.FuncDecl) bool {
	return d.Recv != nil && slices.Contains([]string{"Error", "Unwrap", "String", "Is", "As", "Len",
		"Less", "Swap", "Close", "Read", "Write"}, d.Name.Name)
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if index, ok := typ.(*ast.IndexExpr); ok {
		typ = index.X
	}
	id, ok := typ.(*ast.Ident)
	return ok && id.IsExported()
}

func undocumentedSpecs(t *testing.T, s source, d *ast.GenDecl) {
	for _, spec := range d.Specs {
		ts, ok := spec.(*ast.TypeSpec)
		if ok && ts.Name.IsExported() && ts.Doc == nil && d.Doc == nil {
			t.Errorf("%s: %s has no comment", s.set.Position(ts.Pos()), ts.Name.Name)
		}
		vs, ok := spec.(*ast.ValueSpec)
		if ok && vs.Names[0].IsExported() && vs.Doc == nil && vs.Comment == nil && d.Doc == nil {
			t.Errorf("%s: %s has no comment", s.set.Position(vs.Pos()), vs.Names[0].Name)
		}
	}
}

func TestFunctionsFitAScreen(t *testing.T) {
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			lines := s.set.Position(fn.End()).Line - s.set.Position(fn.Pos()).Line + 1
			limit := functionLines
			if allowed, ok := ratchet[s.path+":"+fn.Name.Name]; ok {
				limit = allowed
			}
			if lines > limit && !shortCases(s, fn) {
				t.Errorf("%s: %s has %d lines, limit %d", s.path, fn.Name.Name, lines, limit)
			}
		}
	}
}

// shortCases reports whether fn is a protocol switch: one switch whose cases
// have at most five lines each.
func shortCases(s source, fn *ast.FuncDecl) bool {
	var whole, body int
	whole = s.set.Position(fn.End()).Line - s.set.Position(fn.Pos()).Line
	ok := false
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		block, is := switchBody(n)
		if !is || body > 0 {
			return true
		}
		ok = true
		body = s.set.Position(block.End()).Line - s.set.Position(block.Pos()).Line
		for _, c := range block.List {
			if s.set.Position(c.End()).Line-s.set.Position(c.Pos()).Line > 6 {
				ok = false
			}
		}
		return false
	})
	return ok && whole-body < 20
}

func switchBody(n ast.Node) (*ast.BlockStmt, bool) {
	switch n := n.(type) {
	case *ast.SwitchStmt:
		return n.Body, true
	case *ast.TypeSwitchStmt:
		return n.Body, true
	}
	return nil, false
}

func TestFilesAndPackagesStaySmall(t *testing.T) {
	files := map[string]int{}
	for _, s := range sources(t) {
		if !s.test {
			files[s.room()]++
		}
		f, err := os.Open(s.path)
		require.NoError(t, err)
		n := 0
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			n++
			width := len([]rune(lines.Text())) // a tab counts once
			if width > lineColumns && !strings.Contains(lines.Text(), "://") {
				t.Errorf("%s:%d: %d columns, limit %d", s.path, n, width, lineColumns)
			}
		}
		require.NoError(t, f.Close())
		require.NoError(t, lines.Err(), s.path)
		if n > fileLines {
			t.Errorf("%s has %d lines, limit %d", s.path, n, fileLines)
		}
	}
	for room, n := range files {
		if n > packageFiles {
			t.Errorf("package %s has %d files, limit %d", room, n, packageFiles)
		}
	}
}

// banned are calls that have no place in some files. A name that ends in * stands
// for all that begin like it.
type banned struct {
	pkg, name string
	where     func(s source) bool
	why       string
}

func (b banned) is(pkg, name string) bool {
	if start, ok := strings.CutSuffix(b.name, "*"); ok {
		return pkg == b.pkg && strings.HasPrefix(name, start)
	}
	return pkg == b.pkg && name == b.name
}

var bans = []banned{
	{"time", "Sleep", func(s source) bool { return s.test },
		"a test waits for an event; only a synctest bubble may sleep"},
	{"log", "Fatal*", func(s source) bool { return !strings.HasPrefix(s.room(), "cmd/") },
		"only a command ends the process"},
	{"os", "Exit", func(s source) bool { return !strings.HasPrefix(s.room(), "cmd/") && !s.test },
		"only a command ends the process"},
	{"math", "Exp*", bitsCount, "its instructions are chosen at run time: kernel has its own"},
	{"math", "Log*", bitsCount, "its instructions are chosen at run time: kernel has its own"},
	{"math", "Pow*", bitsCount, "its instructions are chosen at run time: rope.go has its own"},
}

func bitsCount(s source) bool {
	return !s.test && slices.Contains([]string{"internal/kernel", "collective", "model"}, s.room())
}

// generators are what math/rand makes, as against its shared generator.
var generators = []string{"New", "NewPCG", "NewChaCha8", "NewSource", "NewZipf"}

// sharesRand reports whether a file imports math/rand or its second version.
func sharesRand(s source) bool {
	return slices.ContainsFunc(s.file.Imports, func(i *ast.ImportSpec) bool {
		return strings.HasPrefix(i.Path.Value, `"math/rand`)
	})
}

func TestBannedCallsStayAway(t *testing.T) {
	for _, s := range sources(t) {
		var bubbles []ast.Node
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			pkg, name := callee(call)
			if pkg == "synctest" && name == "Test" {
				bubbles = append(bubbles, call)
			}
			for _, b := range bans {
				if b.is(pkg, name) && b.where(s) && !within(bubbles, call) {
					t.Errorf("%s: %s.%s: %s", s.set.Position(call.Pos()), pkg, name, b.why)
				}
			}
			if pkg == "rand" && sharesRand(s) && !slices.Contains(generators, name) {
				t.Errorf("%s: rand.%s: no shared generator: seed one", s.set.Position(call.Pos()), name)
			}
			return true
		})
	}
}

func callee(call *ast.CallExpr) (pkg, name string) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	id, ok := sel.X.(*ast.Ident)
	if !ok || id.Obj != nil { // a variable, not a package
		return "", ""
	}
	return id.Name, sel.Sel.Name
}

func within(nodes []ast.Node, n ast.Node) bool {
	return slices.ContainsFunc(nodes, func(b ast.Node) bool {
		return b.Pos() <= n.Pos() && n.End() <= b.End()
	})
}

func TestEveryGoroutineNamesItsEnd(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		comments := map[int]bool{}
		for _, group := range s.file.Comments {
			from, to := s.set.Position(group.Pos()).Line, s.set.Position(group.End()).Line
			for line := from; line <= to+1; line++ {
				comments[line] = true
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if starts(n) && !comments[s.set.Position(n.Pos()).Line] {
				t.Errorf("%s: starts a goroutine without a comment that says who ends it",
					s.set.Position(n.Pos()))
			}
			return true
		})
	}
}

// starts reports whether n starts a goroutine: a go statement, or the Go of a
// wait group.
func starts(n ast.Node) bool {
	if _, ok := n.(*ast.GoStmt); ok {
		return true
	}
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "Go" && len(call.Args) == 1
}

func TestTextSpeaksOfTheHouseOnly(t *testing.T) {
	names := []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", ".ci/run"}
	for _, s := range sources(t) {
		if s.path != "house_test.go" {
			names = append(names, s.path)
		}
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, word := range []string{"TODO", "FIXME", "TBD", "/home/", "/Users/"} {
			require.NotContains(t, string(text), word, name)
		}
	}
}

func TestReadmeGivesTheTwoCommands(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, c := range []string{"go run ./cmd/launch verify", "go test ./..."} {
		require.Contains(t, string(text), c, fmt.Sprintf("the README must give %q", c))
	}
	ci, err := os.ReadFile(".ci/run")
	require.NoError(t, err)
	require.Contains(t, string(ci), "go test ./...", "CI runs the README's test command")
}

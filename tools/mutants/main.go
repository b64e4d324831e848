// Mutants breaks the code on purpose, one place at a time, and runs the tests
// that must notice. It changes no file: the go command reads the broken text
// from an overlay.
//
// Usage, from the root of the repository:
//
//	go run -C tools ./mutants [-run NAME]
//
// It prints a line a mutant and exits with 1 if one survived, if its text is no
// longer there to be changed, or if it does not compile.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// edit replaces one text, which stands once in the file.
type edit struct{ file, from, to string }

// mutant is one way to be wrong.
type mutant struct {
	name  string
	edits []edit
	tests []string // package and pattern of the tests that must fail
}

var mutants = []mutant{
	{"all-reduce after reduce-scatter", []edit{{"model/layer.go",
		`	return y, s.comm.ReduceScatter(s.ctx, s.call(collective.Sequence),
		collective.Float32s(y.x), collective.Float32s(all), collective.SUM)`,
		`	if err := s.comm.ReduceScatter(s.ctx, s.call(collective.Sequence),
		collective.Float32s(y.x), collective.Float32s(all), collective.SUM); err != nil {
		return y, err
	}
	again := collective.Float32s(y.x)
	return y, s.comm.AllReduce(s.ctx, s.call(collective.Sequence), again, again, collective.SUM)`}},
		[]string{"./model", "Bits"}},
	{"all-reduce is missing", []edit{{"model/layer.go",
		"	s.shares(y.x, w, x, 0, s.rows())\n	if s.size == 1 {",
		"	s.shares(y.x, w, x, 0, s.rows())\n	if s.size >= 1 {"}},
		[]string{"./model", "Bits"}},
	{"bias on every rank before the sum", []edit{
		{"model/layer.go", "	hash uint64   // of plan and d\n}", "	hash uint64   // of plan and d\n	bias []float32\n}"},
		{"model/layer.go", "	var y hidden\n	var err error\n	switch {\n	case !s.d.FC1:",
			"	var y hidden\n	var err error\n	s.bias, bias = bias, nil\n	switch {\n	case !s.d.FC1:"},
		{"model/layer.go", "	s.pad(y[n*w.Rows() : (to-from)*w.Rows()])",
			"	for i := 0; i < n && s.bias != nil; i++ {\n" +
				"		kernel.Add(y[i*w.Rows():(i+1)*w.Rows()], y[i*w.Rows():(i+1)*w.Rows()], s.bias)\n" +
				"	}\n	s.pad(y[n*w.Rows() : (to-from)*w.Rows()])"},
	}, []string{"./model", "Bias|Bits"}},
	{"bias on rank 0 only", []edit{{"model/layer.go", "		if bias != nil {\n			kernel.Add(row, row, bias)",
		"		if bias != nil && s.rank == 0 {\n			kernel.Add(row, row, bias)"}},
		[]string{"./model", "Bias|Bits"}},
	{"padding is kept after the gather", []edit{{"model/layer.go",
		"	return all[:s.rows()*s.width()], err", "	return all, err"}},
		[]string{"./model", "Padding|Bits"}},
	{"padding is written to keys and values", []edit{{"model/layer.go",
		"	return all[:s.rows()*s.width()], err",
		"	copy(all[(s.rows()-1)*s.width():], all[len(all)-s.width():])\n" +
			"	return all[:s.rows()*s.width()], err"}},
		[]string{"./model", "Padding|Bits"}},
	{"shards are swapped", []edit{{"collective/reduce.go",
		"			o.sendChunks(r, src.slice(r*n, (r+1)*n), cut(n, n, most))",
		"			o.sendChunks(r, src.slice((p-1-r)*n, (p-r)*n), cut(n, n, most))"}},
		[]string{"./collective/mem", "Conformance"}},
	{"one rank has FC1 off", []edit{{"model/engine.go",
		`e.failpoint != nil && e.failpoint("model/plan") != nil`, `e.rank == e.size-1`}},
		[]string{"./model", "Bits"}},
	{"plan hash is not compared", []edit{{"collective/descriptor.go",
		"	return terms{h.plan, h.verb,", "	return terms{0, h.verb,"}},
		[]string{"./collective/mem", "Conformance"}},
	{"epoch is not checked", []edit{{"collective/descriptor.go",
		"	case got.epoch != due.epoch:", "	case got.epoch != due.epoch && due.epoch == 0:"}},
		[]string{"./collective/mem", "Conformance"}},
	{"sum in order of arrival", []edit{
		{"collective/op.go", "			f.got++\n", "			f.got++\n			o.c.arrivals = append(o.c.arrivals, peer)\n"},
		{"collective/comm.go", "	counts Counts\n}", "	counts Counts\n	arrivals []int\n}"},
		{"collective/reduce.go", "	for r := range p {\n		b := own", `	order := []int{in.o.c.cfg.Rank}
	for k := len(in.o.c.arrivals) - 1; k >= 0 && len(order) < p; k-- {
		if r := in.o.c.arrivals[k]; !slices.Contains(order, r) {
			order = append(order, r)
		}
	}
	for _, r := range order {
		b := own`},
		{"collective/reduce.go", "	\"math\"\n", "	\"math\"\n	\"slices\"\n"},
	}, []string{"./collective/mem", "Conformance"}},
	{"own partial first", []edit{{"collective/reduce.go",
		"	for r := range p {\n		b := own",
		"	for k := range p {\n		r := (in.o.c.cfg.Rank + k) % p\n		b := own"}},
		[]string{"./collective/mem", "Conformance"}},
	{"digest is always equal", []edit{{"internal/kernel/digest.go",
		"		col += 1 << 32\n	}\n	return sum", "		col += 1 << 32\n	}\n	return sum * 0"}},
		[]string{"./internal/kernel", "Digest"}},
	{"verify believes every token", []edit{{"cmd/launch/verify.go",
		"			if a[k].ID != b[k].ID {", "			if a[k].ID != b[k].ID && k < 0 {"}},
		[]string{"./cmd/launch", "Verdict"}},
	{"verify ignores states", []edit{{"cmd/launch/verify.go",
		"			d.states = false", "			d.states = true"}},
		[]string{"./cmd/launch", "Verdict"}},
	{"verify ignores counts", []edit{{"cmd/launch/report.go",
		"		case o.wrong != nil && different == \"\":", "		case o.wrong != nil && false:"}},
		[]string{"./cmd/launch", "Verdict"}},
	{"digest forgets the position", []edit{{"internal/kernel/digest.go",
		"mix(mix(mix(op+1)+layer) + row)", "mix(mix(mix(op+1)+layer) + row*0)"}},
		[]string{"./internal/kernel", "Digest"}},
}

func main() {
	run := flag.String("run", "", "only mutants whose name matches")
	flag.Parse()
	pattern, err := regexp.Compile(*run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	killed, failed := 0, 0
	sound := map[string]error{} // what the tests say without a mutant
	for _, m := range mutants {
		if !pattern.MatchString(m.name) {
			continue
		}
		begin := time.Now()
		key := strings.Join(m.tests, " ")
		if _, known := sound[key]; !known {
			sound[key] = m.baseline()
		}
		verdict, err := "", sound[key]
		if err == nil {
			verdict, err = m.try()
		}
		if err != nil {
			verdict = "ERROR: " + err.Error()
		}
		if verdict == "killed" {
			killed++
		} else {
			failed++
		}
		fmt.Printf("%-38s %-9s %5.1fs  %s\n", m.name, verdict, time.Since(begin).Seconds(), key)
	}
	fmt.Printf("%d killed, %d not\n", killed, failed)
	if failed > 0 || killed == 0 {
		os.Exit(1)
	}
}

// baseline is nil if the tests pass, and are some, on the code as it is.
func (m mutant) baseline() error {
	out, err := command("test", "-short", "-timeout", "240s", "-run", m.tests[1], m.tests[0])
	switch {
	case err != nil:
		return fmt.Errorf("its tests fail without it: %s", bytes.TrimSpace(out))
	case bytes.Contains(out, []byte("[no tests to run]")):
		return fmt.Errorf("%s has no test that matches %s", m.tests[0], m.tests[1])
	}
	return nil
}

// try runs the tests against the mutant: "killed" or "SURVIVED".
func (m mutant) try() (string, error) {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.overlay(dir)
	if err != nil {
		return "", err
	}
	if out, err := command("build", "-overlay", overlay, m.tests[0]); err != nil {
		return "", fmt.Errorf("does not compile: %s", bytes.TrimSpace(out))
	}
	out, err := command("test", "-overlay", overlay, "-count=1", "-short", "-failfast",
		"-timeout", "240s", "-run", m.tests[1], m.tests[0])
	switch {
	case bytes.Contains(out, []byte("panic: test timed out")):
		return "", fmt.Errorf("its tests do not end")
	case bytes.Contains(out, []byte("[build failed]")):
		return "", fmt.Errorf("its tests do not compile: %s", bytes.TrimSpace(out))
	case err == nil:
		return "SURVIVED", nil
	}
	return "killed", nil
}

// overlay writes the broken files and the overlay that puts them in place.
func (m mutant) overlay(dir string) (string, error) {
	root, err := filepath.Abs("..")
	if err != nil {
		return "", err
	}
	texts := map[string]string{}
	for _, e := range m.edits {
		if texts[e.file] == "" {
			text, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				return "", err
			}
			texts[e.file] = string(text)
		}
		if n := strings.Count(texts[e.file], e.from); n != 1 {
			return "", fmt.Errorf("the text to change stands %d times in %s", n, e.file)
		}
		texts[e.file] = strings.Replace(texts[e.file], e.from, e.to, 1)
	}
	replace := map[string]string{}
	for file, text := range texts {
		name := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return "", err
		}
		replace[filepath.Join(root, file)] = name
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, text, 0o644)
}

func command(args ...string) ([]byte, error) {
	c := exec.Command("go", args...)
	c.Dir = ".."
	return c.CombinedOutput()
}

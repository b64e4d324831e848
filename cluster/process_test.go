package cluster

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// child starts this test binary in a role.
func child(t *testing.T, f *forker, as string, out *output) *process {
	t.Helper()
	p, err := startProcess(f, 3, []string{os.Args[0], "-test.run=^$"},
		append(os.Environ(), role+"="+as), out)
	require.NoError(t, err)
	t.Cleanup(func() { p.Signal(syscall.SIGKILL) })
	return p
}

func waitFor(t *testing.T, p *process) exit {
	t.Helper()
	ended := make(chan exit, 1)
	go func() { ended <- p.Wait() }()
	select {
	case e := <-ended:
		return e
	case <-until(t, 10*time.Second).Done():
		t.Fatalf("pid %d has not ended", p.pid)
		return exit{}
	}
}

// What a rank prints comes out line by line with its tag, a last line without
// newline too, and its exit status and last words are known.
func TestProcessOutputAndStatus(t *testing.T) {
	f := newForker()
	defer f.Close()
	var printed bytes.Buffer
	e := waitFor(t, child(t, f, "lines", &output{w: &printed}))
	require.Equal(t, 3, e.Code)
	require.Empty(t, e.Signal)
	require.Equal(t, "first\nlast", e.Detail)
	require.Contains(t, printed.String(), "[rank 3] to stdout "+os.Args[0]+"\n")
	require.Contains(t, printed.String(), "[rank 3] first\n")
	require.Contains(t, printed.String(), "[rank 3] last\n")
}

// The signal that ended a rank is known by name, and nothing more is sent to
// its number.
func TestProcessSignal(t *testing.T) {
	f := newForker()
	defer f.Close()
	p := child(t, f, "mute", &output{})
	p.Signal(syscall.SIGKILL)
	e := waitFor(t, p)
	require.Equal(t, "killed", e.Signal)
	require.Equal(t, -1, e.Code)
	require.True(t, p.ended)
}

// What a rank started does not outlive it, although it holds the rank's output.
func TestProcessTakesItsFamilyAlong(t *testing.T) {
	if !waitExitLeaves {
		t.Skip("a child can't be waited for without being reaped here")
	}
	f := newForker()
	defer f.Close()
	var printed bytes.Buffer
	from := time.Now()
	e := waitFor(t, child(t, f, "family", &output{w: &printed}))
	require.Equal(t, 0, e.Code, e.Detail)
	require.Less(t, time.Since(from), 5*time.Second)
	text, _ := strings.CutPrefix(strings.TrimSpace(printed.String()), "[rank 3] ")
	grandchild, err := strconv.Atoi(text)
	require.NoError(t, err, printed.String())
	requireGone(t, grandchild)
}

// requireGone fails unless a process ends within five seconds. A zombie that
// its own parent has yet to reap has ended.
func requireGone(t *testing.T, pids ...int) {
	t.Helper()
	require.Eventually(t, func() bool { return !slices.ContainsFunc(pids, alive) },
		5*time.Second, lookAgain, "of %v some are still there", pids)
}

func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return !os.IsNotExist(err)
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

// Lines are cut where they end and where they get too long; the tail keeps the
// last ones.
func TestLines(t *testing.T) {
	var printed bytes.Buffer
	l := newLines(&output{w: &printed}, "> ")
	_, err := l.Write([]byte("a\nb"))
	require.NoError(t, err)
	_, err = l.Write([]byte("c\n\n" + strings.Repeat("x", lineMax+1)))
	require.NoError(t, err)
	l.Flush()
	require.Equal(t, "> a\n> bc\n> \n> "+strings.Repeat("x", lineMax+1)+"\n", printed.String())
	for i := range 2 * tailLines {
		_, err = l.Write([]byte(strconv.Itoa(i) + "\n"))
		require.NoError(t, err)
	}
	require.Equal(t, tailLines, strings.Count(l.Tail(), "\n")+1)
	require.True(t, strings.HasSuffix(l.Tail(), strconv.Itoa(2*tailLines-1)))
}

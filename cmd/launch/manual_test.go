package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// The package comment is the manual: it names every flag that a command takes,
// and no other.
func TestManualNamesEveryFlag(t *testing.T) {
	source, err := os.ReadFile("main.go")
	require.NoError(t, err)
	manual, _, found := strings.Cut(string(source), "package main")
	require.True(t, found)
	dashed := func(name string) string { return strings.ReplaceAll(name, "_", "-") }
	told := map[string]bool{}
	for _, m := range regexp.MustCompile(`--([a-z][a-z0-9_-]+)`).FindAllStringSubmatch(manual, -1) {
		told[dashed(m[1])] = true
	}
	taken := map[string]bool{}
	for _, c := range []*cobra.Command{verifyCommand(), generateCommand(), upCommand(),
		statusCommand(), stopCommand()} {
		c.Flags().VisitAll(func(f *pflag.Flag) { taken[dashed(f.Name)] = true })
	}
	require.Equal(t, taken, told)
}

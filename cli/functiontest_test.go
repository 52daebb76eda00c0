package cli

import (
	"strings"
	"testing"
)

// TestFunctionTestUsage: flags that cannot be are refused in words of this program's own.
func TestFunctionTestUsage(t *testing.T) {
	for says, args := range map[string][]string{
		"--random -5 must be":  {"--random", "-5"},
		"--random says what":   {"--random", "5", "--pcap", "f"},
		"--seed says what":     {"--seed", "5", "--pcap", "f"},
		"name one with --pcap": {"--client", "10.0.0.0/8"},
	} {
		got, code := onpathRun(append([]string{"function", "test", "mine"}, args...)...)
		if code != exitBadInput || !strings.Contains(got, says) {
			t.Errorf("%q: code %d: %s", args, code, got)
		}
	}
}

package cli

import (
	"strings"
	"testing"
)

// TestCatalogueUseRefusesFlags: what is empty, said twice or of no effect is refused.
func TestCatalogueUseRefusesFlags(t *testing.T) {
	for line, want := range map[string]string{
		"--to=":                               "--to is empty",
		"--to any --at=":                      "--at is empty",
		"--to any --from=":                    "--from is empty",
		"--name=":                             "--name is empty",
		"--from website":                      "without --to",
		"--priority 5":                        "without --to",
		"--to any --priority 99999999":        "--priority 99999999",
		"--set rate=10Mbit --set rate=20Mbit": "--set rate is there twice",
		"--set rate":                          "write PARAMETER=VALUE",
	} {
		c := newCatalogueUse(&global{output: outTable})
		c.SetArgs(append([]string{"ebpf-ratelimit"}, strings.Fields(line)...))
		c.SilenceErrors, c.SilenceUsage = true, true
		if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

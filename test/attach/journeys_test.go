package attach_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// address is where the console says that it is.
var address = regexp.MustCompile(`http://\S+`)

// TestJourneys: a browser does what people do (web/journeys.mjs), clicks counted; each effect
// is seen in traffic. Two are part of every run, all with ONPATH_SOAK, which needs the images.
func TestJourneys(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it takes four minutes and needs the images")
	}
	needBrowser(t)
	c, ctx := newCloud(t, 10*time.Minute)
	for host, at := range map[string]string{"vm1": "10.20.0.11", "vm2": "10.20.0.12"} {
		if err := c.Start("origin-"+host, host, c.Bin(), "demo", "origin", at+":80", at+":23"); err != nil {
			t.Fatal(err)
		}
	}
	c.must(ctx, "apply", "-f", "../../examples/attach", "-f", "../../functions/shaper/function.yaml")
	c.must(ctx, "attach", "vm1", "--through", "firewall", "--place", "name=vm3")
	c.must(ctx, "attach", "vm1", "--through", "ids", "--copy", "--place", "name=vm3")
	said, err := c.Console(ctx)
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.journeys(ctx, address.FindString(said))
	t.Logf("%s", out)
	if err != nil || strings.Count(out, "ok  ") < 9 {
		t.Error(err)
	}
	// The console prints the next address when one was used.
	next := address.FindAllString(c.Log("console"), -1)
	out, err = c.journeys(ctx, next[len(next)-1], "KEYBOARD=1")
	t.Logf("by the keyboard alone:\n%s", out)
	if err != nil || strings.Count(out, "ok  ") < 9 {
		t.Error(err)
	}
}

// needBrowser skips a test where no browser can be driven.
func needBrowser(t *testing.T) {
	t.Helper()
	for _, p := range []string{"chromium", "node"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip("no Chromium is installed, or no Node to drive it: " + p)
		}
	}
	if _, err := os.Stat("../../web/node_modules/playwright-core"); err != nil {
		t.Skip("no Playwright is installed: (cd web && npm ci)")
	}
}

func (c *cloud) journeys(ctx context.Context, at string, env ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "node", "journeys.mjs", at)
	cmd.Dir, cmd.WaitDelay = "../../web", 5*time.Second
	cmd.Env = append(os.Environ(), "ONPATH="+c.Bin(), fmt.Sprintf("LAB=attach-%d", os.Getpid()), "SERVER="+c.Socket())
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

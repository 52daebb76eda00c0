package cli

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

func TestMissingFlagIsUsage(t *testing.T) {
	for _, args := range [][]string{{"trace", "10.1.0.2", "10.9.0.2"}, {"capture", "web"}} {
		root := newRoot()
		root.SetArgs(args)
		if code := exitCode(root.ExecuteContext(t.Context())); code != exitBadInput {
			t.Errorf("%v: exit code %d, want %d", args, code, exitBadInput)
		}
	}
}

// Another protocol is no path of a socket.
func TestServerScheme(t *testing.T) {
	for _, server := range []string{"http://127.0.0.1:7443", "ftp://x"} {
		root := newRoot()
		root.SetArgs([]string{"get", "chains", "--server", server})
		if err := root.ExecuteContext(t.Context()); exitCode(err) != exitBadInput || !strings.Contains(err.Error(), "https://host:port") {
			t.Errorf("%s: %v, exit code %d", server, err, exitCode(err))
		}
	}
}

// What is waited for in vain is not a server that cannot be reached.
func TestIncomplete(t *testing.T) {
	k := onpath.Key{Kind: onpath.KindChain, Tenant: "default", Name: "web"}
	err := stillMissing(t.Context(), []onpath.Key{k}, map[onpath.Key]string{k: "firewall 0/1 (no room)"}, time.Second)
	want := "chain default/web: not complete after 1s: firewall 0/1 (no room); it goes on by itself; onpath describe tells more"
	if exitCode(err) != exitIncomplete || err.Error() != want {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
}

func TestInterruptedSaysOnlyWhatIsNew(t *testing.T) {
	for want, err := range map[string]error{
		"": context.Canceled, "onpath: stopped waiting\n": fmt.Errorf("stopped waiting: %w", context.Canceled),
	} {
		var out bytes.Buffer
		printError(&out, err)
		if out.String() != want || exitCode(err) != exitInterrupted {
			t.Errorf("%v: printed %q, exit code %d", err, out.String(), exitCode(err))
		}
	}
}

// A server of an older version said so when it ended; it was not the user.
func TestNoFailureIsSilent(t *testing.T) {
	var out bytes.Buffer
	printError(&out, &onpath.Error{Code: onpath.CodeInternal, Message: context.Canceled.Error()})
	if out.String() != "onpath: context canceled\n" {
		t.Errorf("printed %q", out.String())
	}
}

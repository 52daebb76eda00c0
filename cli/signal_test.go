package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/signal/nslp"
)

// TestSignalRefuses: what no node could do is refused before anything is sent, in words that
// say what to write.
func TestSignalRefuses(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "me.key")
	if got, code := onpathRun("signal", "key", key); code != exitOK {
		t.Fatal(got)
	}
	for _, toward := range []string{"224.0.0.1", "ff02::1", "0.0.0.0", "255.255.255.255"} {
		if got, code := onpathRun("signal", "probe", "--toward", toward, "--key", key); code != exitBadInput ||
			!strings.Contains(got, "not the address of one machine") {
			t.Errorf("toward %s: code %d: %s", toward, code, got)
		}
	}
	for header, says := range map[string]string{
		"ttl:60":                                   "header url is missing",
		"url:http://192.0.2.1/m\nttl:999999":       "at most 86400 seconds",
		"url:http://192.0.2.1/m\nttl:0":            "write a whole number from 1",
		"url:http://192.0.2.1/m\nfilter-port:0":    "from 1 to 65535",
		"url:http://192.0.2.1/m\nfilter-proto:sip": "udp, tcp or icmp",
	} {
		file := filepath.Join(dir, "request.txt")
		if err := os.WriteFile(file, []byte("SETUP m NETSERV/0.1\n"+header+"\n\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, code := onpathRun("signal", "setup", "--toward", "192.0.2.9", "--key", key, file); code != exitBadInput ||
			!strings.Contains(got, says) {
			t.Errorf("%q: code %d, must say %q: %s", header, code, says, got)
		}
	}
	if got, code := onpathRun("signal", "key", "/nonexist/x.key"); code == exitOK || !strings.Contains(got, "/nonexist/x.key") ||
		strings.Contains(got, ".new-") {
		t.Errorf("a key in a folder that is not there: code %d: %s", code, got)
	}
}

// TestSignalRemoveNeedsAModule: REMOVE of a module that no node has is an error; so is one
// that some nodes refuse and the others know nothing of.
func TestSignalRemoveNeedsAModule(t *testing.T) {
	entry := func(states ...string) (list []nslp.Entry) {
		for _, s := range states {
			list = append(list, nslp.Entry{Node: "gw", State: s})
		}
		return list
	}
	c := newRoot()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	g := &global{output: outTable}
	for what, x := range map[string]struct {
		list []nslp.Entry
		ok   bool
	}{
		"none has it":              {entry(nslp.Absent, nslp.Absent), false},
		"refused, or not there":    {entry(nslp.Refused, nslp.Absent), false},
		"one had it":               {entry(nslp.Absent, nslp.Removed), true},
		"one that changes nothing": {entry(nslp.DryRun), true},
	} {
		err := printStack(g, c, &nslp.Message{Type: nslp.Remove, Module: "m"}, &nslp.Message{Stack: x.list})
		if (err == nil) != x.ok {
			t.Errorf("%s: %v", what, err)
		}
		var e *onpath.Error
		if !x.ok && (!errors.As(err, &e) || e.Code != onpath.CodeNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if !strings.Contains(out.String(), "HOP") {
		t.Errorf("the heading is missing:\n%s", out.String())
	}
}

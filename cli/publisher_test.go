package cli

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onpath/onpath/internal/signalling"
)

// TestPublisherRefusesAtStart: what cannot work is refused before anybody comes.
func TestPublisherRefusesAtStart(t *testing.T) {
	dir := t.TempDir()
	key, damaged := filepath.Join(dir, "key"), filepath.Join(dir, "nodes")
	if _, err := signalling.MakeKey(key); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(damaged, []byte("a b c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ flag, value, want string }{
		{"edge", "192.0.2.77:8080", "--edge 192.0.2.77:8080 is no address of this machine"},
		{"origin", "http://:80", "is no URL of a web site"},
		{"origin", "http://127.0.0.1:8081", "in a circle"},
		{"from", "192.0.2.77", "--from 192.0.2.77 is no address of this machine"},
		{"module", damaged, "is no WebAssembly module"},
		{"property", "live", "write NAME=VALUE"},
		{"property", "origin=http://other.example", "write NAME=VALUE"},
		{"ttl", "100h", "--ttl 3s to 24h"},
		{"life", "-1s", "--life not below 0"},
		{"nodes", damaged, "line 1"},
		{"listen", "EDGE", "--listen and --edge are the same"},
	} {
		cmd := newPublisherCDN(nil)
		edge := anAddress(t) + ":8080"
		flags := map[string]string{"origin": "http://127.0.0.1:8000", "edge": edge, "key": key, "listen": ":8081", "nodes": filepath.Join(dir, "none")}
		flags[c.flag] = strings.Replace(c.value, "EDGE", edge, 1)
		var args []string
		for k, v := range flags {
			args = append(args, "--"+k+"="+v)
		}
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(ended(t)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("--%s %s: %v", c.flag, c.value, err)
		}
	}
}

// anAddress is one of this machine that is not of the loopback.
func anAddress(t *testing.T) string {
	list, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			return n.IP.String()
		}
	}
	t.Skip("this machine has no address but the loopback's")
	return ""
}

// ended is a context that has ended: what starts in it ends at once.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

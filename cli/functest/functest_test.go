package functest_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/cli/functest"
	"github.com/onpath/onpath/internal/funcbuild"
)

func open(t *testing.T, source string, config map[string]string) *functest.Function {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to load programs")
	}
	f, err := functest.Open(t.Context(), source, config, io.Discard)
	if errors.Is(err, funcbuild.ErrLacking) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	for _, target := range functest.Targets {
		if !f.Runs(target) {
			t.Fatalf("%s: %s", target, f.Lacking[target])
		}
	}
	return f
}

// TestAgree: functions that come with onpath do the same on both targets.
func TestAgree(t *testing.T) {
	packets := 1000
	if os.Getenv("ONPATH_SOAK") != "" {
		packets = 100_000
	}
	for _, file := range []string{"netmonitor/netmonitor.c", "ebpf-ratelimit/ratelimit.bpf.c"} {
		t.Run(filepath.Dir(file), func(t *testing.T) {
			source := filepath.Join("../../functions", file)
			var spec functest.Spec
			if _, err := manifest.ReadStrict(filepath.Join(filepath.Dir(source), "test.yaml"), &spec); err != nil {
				t.Fatal(err)
			}
			f := open(t, source, spec.Config)
			for i := range spec.Cases {
				if err := f.Check(t.Context(), &spec.Cases[i]); err != nil {
					t.Errorf("%s: %v", spec.Cases[i].Name, err)
				}
			}
			seed := uint64(time.Now().UnixNano())
			given, err := f.Random(t.Context(), packets, seed, spec.Cases)
			if err != nil || given < packets/2 {
				t.Errorf("%d packets of seed %d: %v", given, seed, err)
			}
			counters, err := f.Counters(t.Context())
			if err != nil {
				t.Error(err)
			}
			for name, n := range counters {
				if n == 0 {
					t.Errorf("seed %d: nothing was counted as %s", seed, name)
				}
			}
		})
	}
}

// TestDiffer: a function that is not the same on both targets is found out.
func TestDiffer(t *testing.T) {
	for name, body := range map[string]string{
		"verdict":  "if (p->ttl == 4 && WASM) return onpath_drop(p, 1); return ONPATH_NEXT;",
		"reason":   "return onpath_drop(p, 1 + WASM);",
		"edit":     "if (WASM) onpath_set_dscp(p, (p->dscp + 1) & 63); return ONPATH_NEXT;",
		"counters": "onpath_count(seen, 1 + WASM); return ONPATH_NEXT;",
	} {
		t.Run(name, func(t *testing.T) {
			source := filepath.Join(t.TempDir(), "differ.c")
			text := "#include \"onpath.h\"\n#ifdef __wasm__\n#define WASM 1\n#else\n#define WASM 0\n#endif\n" +
				"ONPATH_LICENSE(\"GPL\");\nONPATH_COUNTERS({ __u64 seen; });\nONPATH_FUNCTION(p) { " + body + " }\n"
			if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := open(t, source, nil).Random(t.Context(), 200, 1, nil)
			if err == nil || !strings.Contains(err.Error(), "wasm") {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestWrongCase: what a case wants and does not get is told.
func TestWrongCase(t *testing.T) {
	f := open(t, "../../functions/netmonitor/netmonitor.c", nil)
	for want, c := range map[string]functest.Case{
		"it says next":       {Verdict: "drop"},
		"is not next, drop":  {Verdict: "pass"},
		"it sends 0":         {Verdict: "next", Sends: []string{"x"}},
		"counter bytes is":   {Verdict: "next", Counters: map[string]uint64{"bytes": 1}},
		"no such counter b;": {Verdict: "next", Counters: map[string]uint64{"b": 0}},
		"dscp becomes 0":     {Verdict: "next", Becomes: &functest.Packet{DSCP: 1}},
		`to becomes "10`:     {Verdict: "next", Becomes: &functest.Packet{To: "10.0.0.3:2"}},
	} {
		c.Packet = functest.Packet{From: "10.0.0.1:1", To: "10.0.0.2:2"}
		if err := f.Check(t.Context(), &c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	c := functest.Case{Verdict: "next", Packet: functest.Packet{From: "10.0.0.1:1", To: "::1"}}
	if err := f.Check(t.Context(), &c); err == nil || !strings.Contains(err.Error(), "two families") {
		t.Error(err)
	}
	c.Packet.To = "10.0.0.2"
	if err := f.Check(t.Context(), &c); err == nil || !strings.Contains(err.Error(), "to: 10.0.0.2 has no port; write 10.0.0.2:53") {
		t.Error(err)
	}
}

// TestEdits: that a function changes packets is seen.
func TestEdits(t *testing.T) {
	for body, edits := range map[string]bool{"onpath_set_dscp(p, 46);": true, "onpath_count(seen, 1);": false} {
		source := filepath.Join(t.TempDir(), "edits.c")
		text := "#include \"onpath.h\"\nONPATH_LICENSE(\"GPL\");\nONPATH_COUNTERS({ __u64 seen; });\n" +
			"ONPATH_FUNCTION(p) { " + body + " return ONPATH_NEXT; }\n"
		if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f := open(t, source, nil)
		if _, err := f.Random(t.Context(), 50, 1, nil); err != nil || f.Edits != edits {
			t.Errorf("%s: edits %t, %v", body, f.Edits, err)
		}
	}
}

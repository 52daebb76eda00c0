package engine_test

import (
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine"
	"github.com/onpath/onpath/internal/packet"
)

// committed are modules that are committed.
func committed(t testing.TB) (modules [][]byte) {
	t.Helper()
	for _, file := range []string{
		"../functions/netmonitor/netmonitor.wasm", "../functions/sip-keepalive/sip-keepalive.wasm", "../examples/module/filter.wasm",
	} {
		code, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		modules = append(modules, code)
	}
	return modules
}

// FuzzCheck: agents read modules that come from anywhere. Nothing panics there, and what is
// taken has what an engine asks for.
func FuzzCheck(f *testing.F) {
	for _, code := range committed(f) {
		f.Add(code)
	}
	f.Fuzz(func(t *testing.T, code []byte) {
		m, err := engine.Check(t.Context(), code)
		if err == nil && (m.MinPages > 256 || len(m.Exports) == 0) {
			t.Fatalf("it is taken with %d pages and %d exports", m.MinPages, len(m.Exports))
		}
	})
}

// TestMutated: modules of which some bits are turned are refused, or run within the bounds
// of one event; the process goes on.
func TestMutated(t *testing.T) {
	n := 50
	if os.Getenv("ONPATH_SOAK") != "" {
		n = 5000
	}
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	modules := committed(t)
	b := packet.Blank(false, packet.UDP, 100, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"))
	refused, ended, ran := 0, 0, 0
	slowest := time.Duration(0)
	for range n {
		code := append([]byte(nil), modules[rng.IntN(len(modules))]...)
		for range 1 + rng.IntN(3) {
			code[8+rng.IntN(len(code)-8)] ^= 1 << rng.IntN(8) // behind magic and version
		}
		trial, err := engine.NewTrial(t.Context(), onpath.WasmModule{Name: "mutated", Code: code}, io.Discard)
		if err != nil {
			refused++
			continue
		}
		began := time.Now()
		for range 4 {
			for i := 20; i < len(b); i++ {
				b[i] = byte(rng.Uint32())
			}
			if _, err = trial.Run(t.Context(), engine.TrialPacket{IP: b, Now: 1e9}); err != nil {
				break
			}
		}
		slowest = max(slowest, time.Since(began))
		if err != nil {
			ended++
		} else {
			ran++
		}
		if err := trial.Close(); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
	t.Logf("seed %d: %d refused, %d ended by a trap or a bound, %d ran; the slowest took %s", seed, refused, ended, ran, slowest)
	if refused == 0 || ran == 0 {
		t.Errorf("seed %d: of %d modules %d were refused and %d ran: this tests nothing", seed, n, refused, ran)
	}
}

package bpfobject

import (
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/bpffs"
	"github.com/onpath/onpath/internal/bpfobject/spoilt"
)

// TestVariants: whatever becomes of an object file, it is refused with a reason or
// accepted, at once; and what is accepted without the kernel, the kernel judges.
func TestVariants(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	accepted, refused, asked, verified := 0, 0, 0, 0
	for _, file := range []string{"../../functions/ebpf-firewall/firewall.o", "../../functions/ebpf-ratelimit/ratelimit.o"} {
		code, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		spoilt.Variants(code, 500, seed, func(i int, v []byte) {
			began := time.Now()
			o, err := Parse(v)
			if time.Since(began) > 2*time.Second { // by itself, or as the machine is busy
				began = time.Now()
				o, err = Parse(v)
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("%s, variant %d: took %s", file, i, took)
				}
			}
			if err != nil {
				refused++
				if onpath.CodeOf(err) != onpath.CodeInvalid || strings.ContainsRune(err.Error(), 0) || len(err.Error()) > 1000 {
					t.Errorf("%s, variant %d: refused with %q", file, i, err)
				}
				return
			}
			accepted++
			if os.Getuid() != 0 || accepted%8 != 0 || o.CheckMemory(64<<20, 2) != nil {
				return // the verifier takes its time
			}
			asked++
			if judged(t, o) {
				verified++
			}
		})
	}
	if os.Getuid() == 0 && verified == 0 {
		t.Errorf("the kernel accepts none of %d variants", asked)
	}
	if refused < 100 || accepted == 0 {
		t.Errorf("%d variants were refused, %d accepted: the test does not try what it should", refused, accepted)
	}
	t.Logf("%d refused, %d accepted, and %d of %d by the kernel as well", refused, accepted, verified, asked)
}

// judged tells what the kernel says of a function; it must say why it refuses.
func judged(t *testing.T, o *Object) bool {
	t.Helper()
	dir := "/sys/fs/bpf/onpath-variants-test"
	if err := bpffs.Need(dir); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	tables, err := o.OpenTables(dir)
	if err != nil {
		return false // a table that this kernel does not make
	}
	defer CloseTables(tables)
	if _, err = o.Verify(tables); err != nil && err.Error() == "" {
		t.Error("the kernel refuses without a word")
	}
	return err == nil
}

package profile

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestSymbols(t *testing.T) {
	l, err := readSymbols(strings.NewReader(`ffffffff81000000 T _text
ffffffff81002000 t second [module]
ffffffff81001000 T first
ffffffff81003000 D data
ffffffffc0000000 t bpf_prog_6deef7357e7b4530_steer_it	[bpf]
`))
	if err != nil {
		t.Fatal(err)
	}
	for address, want := range map[uint64]string{
		0x7f0000001000: UserSpace, 0xffffffff80000000: "kernel", 0xffffffff81000fff: "_text", 0xffffffff81001000: "first",
		0xffffffff81002fff: "second", 0xffffffffc0000123: "bpf: steer_it",
	} {
		if got := l.name(address); got != want {
			t.Errorf("%#x is %q, must be %q", address, got, want)
		}
	}
	got := l.count([]uint64{0xffffffff81001000, 0xffffffff81001004, 0xffffffff81002000, 1})
	if len(got) != 3 || got[0] != (Share{"first", 0.5}) || got[1].Share != 0.25 {
		t.Errorf("counted %v", got)
	}
}

// TestAddresses: a ring ends where it was written to, and where it is full.
func TestAddresses(t *testing.T) {
	record := func(kind uint32, address uint64) []byte {
		b := binary.NativeEndian.AppendUint32(nil, kind)
		b = binary.NativeEndian.AppendUint16(b, 0)
		b = binary.NativeEndian.AppendUint16(b, 16)
		return binary.NativeEndian.AppendUint64(b, address)
	}
	ring := append(append(record(unix.PERF_RECORD_SAMPLE, 1), record(unix.PERF_RECORD_LOST, 2)...), record(unix.PERF_RECORD_SAMPLE, 3)...)
	for head, want := range map[uint64]int{0: 0, 16: 1, 32: 1, 48: 2, 64: 2} {
		if got := addresses(ring, head); len(got) != want {
			t.Errorf("up to %d: %v, must be %d", head, got, want)
		}
	}
	if got := addresses([]byte{9, 0, 0, 0, 0, 0, 0, 0}, 8); got != nil {
		t.Errorf("a record without size gives %v", got)
	}
}

// TestSampler: what keeps a CPU busy is seen.
func TestSampler(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to sample a CPU")
	}
	s, err := Start(0)
	if err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(50 * time.Millisecond); time.Now().Before(until); {
		unix.Getpid()
	}
	shares, err := s.Stop()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for i, x := range shares {
		sum += x.Share
		if x.Function == "" || i > 0 && x.Share > shares[i-1].Share {
			t.Errorf("%v", shares)
		}
	}
	if len(shares) > 0 && (sum < 0.999 || sum > 1.001) {
		t.Errorf("the shares add up to %v: %v", sum, shares)
	}
}

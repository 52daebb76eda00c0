package ebpf

import (
	"bytes"
	"testing"

	"github.com/cilium/ebpf/btf"
)

var (
	u8  = &btf.Int{Name: "unsigned char", Size: 1}
	u32 = &btf.Int{Name: "unsigned int", Size: 4}
)

func member(name string, t btf.Type, bit, bits uint32) btf.Member {
	return btf.Member{Name: name, Type: t, Offset: btf.Bits(bit), BitfieldSize: btf.Bits(bits)}
}

// TestConvert: fields keep their values wherever they are, whatever else was added,
// left out, or has grown.
func TestConvert(t *testing.T) {
	inner := &btf.Struct{Name: "inner", Size: 2, Members: []btf.Member{member("a", u8, 0, 0), member("b", u8, 8, 0)}}
	swapped := &btf.Struct{Name: "inner", Size: 2, Members: []btf.Member{member("b", u8, 0, 0), member("a", u8, 8, 0)}}
	was, ok := layoutOf(&btf.Struct{Name: "s", Size: 16, Members: []btf.Member{
		member("id", u32, 0, 0), member("low", u32, 32, 24), member("high", u32, 56, 8),
		member("gone", u32, 64, 0), member("list", &btf.Array{Type: inner, Index: u32, Nelems: 2}, 96, 0),
	}})
	now, both := layoutOf(&btf.Struct{Name: "s", Size: 20, Members: []btf.Member{
		member("fresh", u32, 0, 0), member("high", u32, 32, 4), member("low", u32, 36, 24),
		member("id", u32, 64, 0), member("list", &btf.Array{Type: swapped, Index: u32, Nelems: 3}, 96, 0),
	}})
	if !ok || !both {
		t.Fatal("the layouts are not known")
	}
	from := []byte{1, 2, 3, 4, 0x11, 0x22, 0x33, 0x4f, 9, 9, 9, 9, 5, 6, 7, 8}
	to := []byte{0, 0, 0, 0, 0x1f, 0x21, 0x32, 0x03, 1, 2, 3, 4, 6, 5, 8, 7, 0, 0, 0, 0}
	if got := convert(from, was, now); !bytes.Equal(got, to) {
		t.Errorf("% x became\n% x, must be\n% x", from, got, to)
	}
	if was.equals(now) || !was.equals(was) {
		t.Error("layouts that differ are the same, or the same differ")
	}
}

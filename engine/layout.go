package engine

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"regexp"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"
	"github.com/tetratelabs/wazero/api"
)

// abiVersion is struct onpath_description's first word (sdk/onpath_wasm.h).
const abiVersion = 1

// description is struct onpath_description: where things are in a module's memory.
type description struct {
	packets, stride, batch, verdicts, needs uint32
	config, counters                        area
	buffer, bufferSize                      uint32
	license                                 string
}

// area is a struct that the module declares.
type area struct {
	at, size uint32
	members  *btf.Struct
}

// Offsets in struct onpath_packet (sdk/onpath.h).
const (
	atSrc, atDst, atSport, atDport           = 0, 16, 32, 34
	atFamily, atProtocol, atDirection, atTTL = 36, 37, 38, 39
	atIs, atDSCP, atICMPType                 = 40, 42, 43
	atLength, atSegments, atWire             = 44, 48, 52
	atPath, atInstance, atNow                = 56, 60, 64
	atShown, atTransport, atPayload          = 72, 76, 78
	atEdit, atNewSrc, atNewDst               = 80, 84, 100
	atNewSport, atNewDport, atNewDSCP        = 116, 118, 120
	atReason, atICMPCode, atData             = 121, 123, 124
	maxData                                  = 1540 // ONPATH_DATA
	packetStride                             = (atData + maxData + 7) &^ 7
	maxBatch                                 = 64 // ONPATH_BATCH
	maxBuffer                                = 64 << 10
)

// describe reads the description at p.
func describe(mem api.Memory, p uint32) (*description, error) {
	b, ok := mem.Read(p, 15*4)
	if !ok {
		return nil, fmt.Errorf("onpath_describe points outside its memory")
	}
	w := func(i int) uint32 { return binary.LittleEndian.Uint32(b[4*i:]) }
	if w(0) != abiVersion {
		return nil, fmt.Errorf("it is made for version %d of the interface; this is %d", w(0), abiVersion)
	}
	d := &description{
		packets: w(1), stride: w(2), batch: min(w(3), maxBatch), verdicts: w(4), needs: min(w(5), maxData),
		buffer: w(12), bufferSize: w(13),
	}
	if d.packets != 0 && (d.stride != packetStride || d.batch == 0) {
		return nil, fmt.Errorf("its packets are %d bytes apart; %d is right", d.stride, packetStride)
	}
	for _, a := range []struct{ at, size uint32 }{
		{d.packets, d.stride * d.batch}, {d.verdicts, d.batch}, {d.buffer, min(d.bufferSize, maxBuffer)}, {w(6), w(7)}, {w(9), w(10)},
	} {
		if a.at != 0 && uint64(a.at)+uint64(a.size) > uint64(mem.Size()) {
			return nil, fmt.Errorf("onpath_describe points outside its memory")
		}
	}
	d.license = text(mem, w(14))
	var err error
	if d.config, err = readArea(mem, w(6), w(7), w(8)); err != nil {
		return nil, fmt.Errorf("its configuration: %w", err)
	}
	if d.counters, err = readArea(mem, w(9), w(10), w(11)); err != nil {
		return nil, fmt.Errorf("its counters: %w", err)
	}
	return d, nil
}

// text is a C string; nothing if it has no end.
func text(mem api.Memory, p uint32) string {
	if p == 0 {
		return ""
	}
	for n := uint32(0); n < 16<<10; n++ {
		if c, ok := mem.ReadByte(p + n); !ok || c == 0 {
			b, _ := mem.Read(p, n)
			return string(b)
		}
	}
	return ""
}

func readArea(mem api.Memory, at, size, layout uint32) (area, error) {
	if at == 0 {
		return area{}, nil
	}
	s, err := parseStruct(text(mem, layout))
	if err == nil && s.Size != size {
		err = fmt.Errorf("its members take %d bytes, and the struct has %d", s.Size, size)
	}
	return area{at: at, size: size, members: s}, err
}

var (
	comments = regexp.MustCompile(`(?s)/\*.*?\*/`)
	member   = regexp.MustCompile(`^(__u8|__u16|__u32|__u64|__s32|__s64|__be16|__be32|char)\s+(.+)$`)
	variable = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)(?:\s*\[\s*([0-9]+)\s*\])?$`)
)

// sizes are those of the types that members may have, in bytes.
var sizes = map[string]uint32{"char": 1, "__u8": 1, "__u16": 2, "__be16": 2, "__u32": 4, "__s32": 4, "__be32": 4, "__u64": 8, "__s64": 8}

// parseStruct reads the text of a struct that has integers, addresses and words, as an
// ebpf function's compiler describes it.
func parseStruct(c string) (*btf.Struct, error) {
	body := strings.TrimSpace(comments.ReplaceAllString(c, " "))
	if !strings.HasPrefix(body, "{") || !strings.HasSuffix(body, "}") || len(body) > 8<<10 {
		return nil, fmt.Errorf("no list of members in braces")
	}
	s := &btf.Struct{}
	align := uint32(1)
	for _, line := range strings.Split(body[1:len(body)-1], ";") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		m := member.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("%q is no member of a type that can be told", line)
		}
		size := sizes[m[1]]
		align = max(align, size)
		for _, name := range strings.Split(m[2], ",") {
			v := variable.FindStringSubmatch(strings.TrimSpace(name))
			if v == nil {
				return nil, fmt.Errorf("%q is no name of a member", name)
			}
			s.Size = (s.Size + size - 1) &^ (size - 1)
			var t btf.Type = integer(m[1], size)
			n := uint64(1)
			if v[2] != "" {
				n, _ = strconv.ParseUint(v[2], 10, 16)
				t = &btf.Array{Type: t, Index: integer("__u32", 4), Nelems: uint32(n)}
			}
			s.Members = append(s.Members, btf.Member{Name: v[1], Type: t, Offset: btf.Bits(s.Size * 8)})
			if hi, add := bits.Mul64(uint64(size), n); hi != 0 || uint64(s.Size)+add > 64<<10 {
				return nil, fmt.Errorf("it is larger than 64 KiB")
			}
			s.Size += size * uint32(n)
		}
	}
	s.Size = (s.Size + align - 1) &^ (align - 1)
	return s, nil
}

func integer(name string, size uint32) *btf.Int {
	i := &btf.Int{Name: name, Size: size}
	if name == "char" {
		i.Encoding = btf.Char
	}
	return i
}

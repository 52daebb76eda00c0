package onpath

import (
	"bytes"
	"cmp"
	"compress/flate"
	"encoding/base64"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Limits of a list of addresses that a file holds.
const (
	MaxListFile    = 16 << 20  // bytes of the file
	MaxListEntries = 256 << 10 // after those that others hold are gone
	MaxListPacked  = 880 << 10 // bytes of it in an object: MaxSpec leaves room for the rest
)

// packedList begins a list as Pack writes it. The number of entries and the data follow.
const packedList = "addresses-packed/1 "

// IsPackedList reports whether a text is what PackAddresses wrote.
func IsPackedList(text string) bool { return strings.HasPrefix(text, packedList) }

// WithoutPackedLists cuts what PackAddresses wrote behind the number of entries, for people to read.
func WithoutPackedLists(text string) string {
	return packedData.ReplaceAllString(text, "${1}…")
}

var packedData = regexp.MustCompile("(" + packedList + "[0-9]+ )[A-Za-z0-9+/=]+")

// ReadAddresses reads a list: an address or prefix a line, or what PackAddresses wrote. #
// and ; begin a comment. What stands behind an address is a column of the list's own, such
// as a count, and says nothing here. The answer is in order, IPv4 first, and none holds
// another; so many lines were left out, for others hold what they say.
func ReadAddresses(text string) (list []netip.Prefix, held int, err error) {
	if IsPackedList(text) {
		return unpack(text)
	}
	text = strings.TrimPrefix(text, "\ufeff")
	n := 0
	for line := range strings.Lines(text) {
		n++
		if i := strings.IndexAny(line, "#;"); i >= 0 {
			line = line[:i]
		}
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		p, err := listed(words)
		if err != nil {
			e := Errorf(CodeInvalid, "line %d: %w", n, err)
			e.Remedy = "write one address or prefix a line; # and ; begin a comment"
			return nil, 0, e
		}
		list = append(list, p)
	}
	return inListOrder(list)
}

// listed is the prefix that the words of a line begin with.
func listed(words []string) (netip.Prefix, error) {
	p, err := ParsePrefix(words[0])
	for _, w := range words[1:] {
		if _, another := ParsePrefix(w); another == nil && strings.ContainsAny(w, ".:") {
			return p, Errorf(CodeInvalid, "%s stands behind %s", quote(w), quote(words[0]))
		}
	}
	return p, err
}

// inListOrder sorts a list, and leaves out what others hold.
func inListOrder(list []netip.Prefix) (kept []netip.Prefix, held int, err error) {
	slices.SortFunc(list, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits())
	})
	kept = list[:0]
	for _, p := range list {
		if len(kept) == 0 || !kept[len(kept)-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	if len(kept) > MaxListEntries {
		e := Errorf(CodeInvalid, "the list has %d entries; at most %d", len(kept), MaxListEntries)
		e.Remedy = "write fewer, larger prefixes"
		return nil, 0, e
	}
	return kept, len(list) - len(kept), nil
}

// PackAddresses writes a list that is in order in as few characters as are quickly had: of each entry what it has
// in common with the one before, then the rest of its bytes, compressed.
func PackAddresses(list []netip.Prefix) (string, error) {
	var shapes, rest, out bytes.Buffer
	var before []byte
	for _, p := range list {
		a := p.Addr().AsSlice()[:(p.Bits()+7)/8]
		same := 0
		for same < len(a) && same < len(before) && a[same] == before[same] {
			same++
		}
		bits := p.Bits()
		if p.Addr().Is6() {
			bits += firstIPv6
		}
		shapes.Write([]byte{byte(bits), byte(same)})
		rest.Write(a[same:])
		before = a
	}
	z, err := flate.NewWriter(&out, 4) // 9 takes twice as long for a fiftieth less
	if err != nil {
		return "", err
	}
	for _, b := range []*bytes.Buffer{&shapes, &rest} {
		if _, err := z.Write(b.Bytes()); err != nil {
			return "", err
		}
	}
	if err := z.Close(); err != nil {
		return "", err
	}
	text := packedList + strconv.Itoa(len(list)) + " " + base64.StdEncoding.EncodeToString(out.Bytes())
	if len(text) > MaxListPacked {
		e := Errorf(CodeInvalid, "the list takes %d bytes when it is packed; at most %d", len(text), MaxListPacked)
		e.Remedy = "write fewer, larger prefixes; IPv6 ones of /64 take half of what addresses take"
		return "", e
	}
	return text, nil
}

// firstIPv6 is what stands for an IPv6 prefix of length 0 in a packed list.
const firstIPv6 = 64

func unpack(text string) (list []netip.Prefix, held int, err error) {
	broken := Errorf(CodeInvalid, "the packed list is broken")
	broken.Remedy = "apply the file with the list again"
	number, data, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(text, packedList)), " ")
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || n > MaxListEntries || len(text) > MaxListPacked {
		return nil, 0, broken
	}
	packed, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		return nil, 0, broken
	}
	all, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed)), int64(n)*(2+16)))
	if err != nil || len(all) < 2*n {
		return nil, 0, broken
	}
	shapes, rest := all[:2*n], all[2*n:]
	var before []byte
	for i := range n {
		bits, same, size := int(shapes[2*i]), int(shapes[2*i+1]), 4
		if bits >= firstIPv6 {
			bits, size = bits-firstIPv6, 16
		}
		length := (bits + 7) / 8
		if length > size || same > length || same > len(before) || length-same > len(rest) {
			return nil, 0, broken
		}
		a := make([]byte, size)
		copy(a, before[:same])
		copy(a[same:], rest[:length-same])
		before, rest = a[:length], rest[length-same:]
		addr, _ := netip.AddrFromSlice(a)
		p := netip.PrefixFrom(addr, bits)
		if !p.IsValid() || p != p.Masked() || addr.Is4In6() {
			return nil, 0, broken
		}
		list = append(list, p)
	}
	return inListOrder(list)
}

package nslp

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// field is one field in both forms: tag in binary, name in text. Tags and names are
// never used again for something else.
type field struct {
	tag  uint16
	name string
	v    value
}

// value is where a field's value is, in its two forms. An empty value is left out in
// binary; text has all the paper's headers.
type value interface {
	bytes() []byte
	setBytes([]byte) error
	text() string
	setText(string) error
}

// fields of a message, in the order of both forms: those of the paper's Figure 3 first.
func (m *Message) fields() []field {
	return []field{
		{1, "dependencies", list{&m.Dependencies}},
		{2, "filter-port", port{&m.FilterPort}},
		{3, "filter-proto", protocol{&m.FilterProtocol}},
		{4, "notification", str{&m.Notification}},
		{5, "properties", list{&m.Properties}},
		{6, "ttl", seconds{&m.TTL}},
		{7, "user", str{&m.User}},
		{8, "url", str{&m.URL}},
		{9, "filter-to", prefixes{&m.FilterTo}},
		{10, "hash", raw{&m.Hash}},
		{11, "module-signature", raw{&m.ModuleSignature}},
		{12, "password", str{&m.Password}},
		{13, "wrapped", raw{&m.Wrapped}},
		{14, "key", raw{&m.Key}},
		{15, "time", instant{&m.Time}},
		{tagNonce, "nonce", nonce{&m.Nonce}},
		{17, "status", str{&m.Status}},
		{18, "stack", entries{&m.Stack}},
		{19, "signature", raw{&m.Signature}},
		{20, "flow", flow{&m.Flow}},
		{21, "serve", served{&m.Serve}},
		{tagAnswers, "answers", str{&m.Answers}},
		{23, "fetch", list{&m.Fetch}},
	}
}

// paper is how many fields the paper has, the signature apart.
const paper = 8

func (e *Entry) fields() []field {
	return []field{
		{1, "node", str{&e.Node}},
		{2, "address", address{&e.Address}},
		{3, "rtt", micros{&e.RTT}},
		{4, "state", str{&e.State}},
		{5, "reason", str{&e.Reason}},
		{6, "words", str{&e.Words}},
		{7, "modules", list{&e.Modules}},
		{8, "blocks", list{&e.Blocks}},
		{9, "policy", list{&e.Policy}},
		{10, "back", entries{&e.Back}},
		{11, "servers", list{&e.Servers}},
		{12, "key", raw{&e.Key}},
		{13, "signature", raw{&e.Signature}},
		{14, "digest", raw{&e.Digest}},
	}
}

var errValue = errors.New("has a value that cannot be")

type str struct{ p *string }

func (v str) bytes() []byte { return []byte(*v.p) }
func (v str) setBytes(b []byte) error {
	*v.p = string(b)
	return printable(*v.p)
}
func (v str) text() string           { return escape(*v.p) }
func (v str) setText(s string) error { return unescape(s, v.p) }

// escaper keeps what divides text apart; nothing else is touched.
var escaper = strings.NewReplacer("%", "%25", ",", "%2C", "\n", "%0A", "\r", "%0D", ";", "%3B")

func escape(s string) string {
	s = escaper.Replace(s)
	if strings.TrimSpace(s) != s { // what stands at an end could be taken for layout
		s = strings.ReplaceAll(s, " ", "%20")
	}
	return s
}

func unescape(s string, to *string) (err error) {
	if *to, err = url.PathUnescape(s); err != nil {
		return errValue
	}
	return printable(*to)
}

func printable(s string) error {
	if strings.ToValidUTF8(s, "") != s || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errValue
	}
	return nil
}

type list struct{ p *[]string }

func (v list) bytes() (b []byte) {
	for _, s := range *v.p {
		b = binary.BigEndian.AppendUint16(b, uint16(len(s)))
		b = append(b, s...)
	}
	return b
}

func (v list) setBytes(b []byte) error {
	for len(b) > 0 {
		if len(b) < 2 || len(b)-2 < int(binary.BigEndian.Uint16(b)) {
			return errValue
		}
		n := 2 + int(binary.BigEndian.Uint16(b))
		s := string(b[2:n])
		if s == "" || printable(s) != nil {
			return errValue
		}
		*v.p, b = append(*v.p, s), b[n:]
	}
	return nil
}

func (v list) text() string {
	var all []string
	for _, s := range *v.p {
		all = append(all, escape(s))
	}
	return strings.Join(all, ",")
}

func (v list) setText(s string) error {
	if s == "" {
		return nil
	}
	for part := range strings.SplitSeq(s, ",") {
		var one string
		if err := unescape(part, &one); err != nil || one == "" {
			return errValue
		}
		*v.p = append(*v.p, one)
	}
	return nil
}

// served are ports as a list of their texts.
type served struct{ p *[]onpath.ServedPort }

func (v served) texts() (out []string) {
	for _, p := range *v.p {
		out = append(out, p.String())
	}
	return out
}

func (v served) set(texts []string) error {
	for _, s := range texts {
		var p onpath.ServedPort
		if p.UnmarshalText([]byte(s)) != nil || p.String() != s || slices.Contains(*v.p, p) {
			return errValue
		}
		*v.p = append(*v.p, p)
	}
	return nil
}

func (v served) bytes() []byte {
	texts := v.texts()
	return list{&texts}.bytes()
}

func (v served) setBytes(b []byte) error {
	var texts []string
	if err := (list{&texts}).setBytes(b); err != nil {
		return err
	}
	return v.set(texts)
}

func (v served) text() string {
	texts := v.texts()
	return list{&texts}.text()
}

func (v served) setText(s string) error {
	var texts []string
	if err := (list{&texts}).setText(s); err != nil {
		return err
	}
	return v.set(texts)
}

type port struct{ p *uint16 }

func (v port) bytes() []byte {
	if *v.p == 0 {
		return nil
	}
	return binary.BigEndian.AppendUint16(nil, *v.p)
}

func (v port) setBytes(b []byte) error {
	if len(b) != 2 || b[0]|b[1] == 0 {
		return errValue
	}
	*v.p = binary.BigEndian.Uint16(b)
	return nil
}

func (v port) text() string {
	if *v.p == 0 {
		return ""
	}
	return strconv.Itoa(int(*v.p))
}

func (v port) setText(s string) error {
	if s == "" {
		return nil
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("%w: write a number from 1 to 65535", errValue)
	}
	*v.p = uint16(n)
	return nil
}

var protocols = []onpath.Protocol{"udp", "tcp", "icmp"}

type protocol struct{ p *onpath.Protocol }

func (v protocol) bytes() []byte           { return []byte(*v.p) }
func (v protocol) setBytes(b []byte) error { return v.setText(string(b)) }
func (v protocol) text() string            { return string(*v.p) }
func (v protocol) setText(s string) error {
	for _, p := range append(protocols, "") {
		if string(p) == s {
			*v.p = p
			return nil
		}
	}
	return fmt.Errorf("%w: write udp, tcp or icmp", errValue)
}

type prefixes struct{ p *[]netip.Prefix }

func (v prefixes) bytes() (b []byte) {
	for _, p := range *v.p {
		a := p.Addr().AsSlice()
		b = append(append(b, byte(len(a)), byte(p.Bits())), a...)
	}
	return b
}

func (v prefixes) setBytes(b []byte) error {
	for len(b) > 0 {
		n := int(b[0])
		if n != 4 && n != 16 || len(b) < 2+n {
			return errValue
		}
		a, _ := netip.AddrFromSlice(b[2 : 2+n])
		p := netip.PrefixFrom(a, int(b[1]))
		if !p.IsValid() || p != p.Masked() || a.Is4In6() {
			return errValue
		}
		*v.p, b = append(*v.p, p), b[2+n:]
	}
	return nil
}

func (v prefixes) text() string {
	var all []string
	for _, p := range *v.p {
		all = append(all, onpath.Prefix{Prefix: p}.String())
	}
	return strings.Join(all, ",")
}

func (v prefixes) setText(s string) error {
	if s == "" {
		return nil
	}
	for part := range strings.SplitSeq(s, ",") {
		p, err := netip.ParsePrefix(part)
		if err != nil {
			a, err := netip.ParseAddr(part)
			if err != nil || a.Zone() != "" {
				return fmt.Errorf("%w: write addresses or prefixes, with commas between", errValue)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		if p != p.Masked() || p.Addr().Is4In6() {
			return fmt.Errorf("%w: write addresses or prefixes, with commas between", errValue)
		}
		*v.p = append(*v.p, p)
	}
	return nil
}

type address struct{ p *netip.Addr }

func (v address) bytes() []byte { return v.p.AsSlice() }
func (v address) setBytes(b []byte) error {
	a, ok := netip.AddrFromSlice(b)
	if !ok || a.Is4In6() {
		return errValue
	}
	*v.p = a
	return nil
}
func (v address) text() string {
	if !v.p.IsValid() {
		return ""
	}
	return v.p.String()
}
func (v address) setText(s string) (err error) {
	if s == "" {
		return nil
	}
	if *v.p, err = netip.ParseAddr(s); err != nil || v.p.Zone() != "" || v.p.Is4In6() {
		return errValue
	}
	return nil
}

// number is a whole number of some unit.
type number struct {
	p    *time.Duration
	unit time.Duration
}

func (v number) bytes() []byte {
	if *v.p == 0 {
		return nil
	}
	return binary.BigEndian.AppendUint32(nil, uint32(*v.p/v.unit))
}

func (v number) setBytes(b []byte) error {
	if len(b) != 4 {
		return errValue
	}
	*v.p = time.Duration(binary.BigEndian.Uint32(b)) * v.unit
	if *v.p == 0 {
		return errValue
	}
	return nil
}

func (v number) text() string {
	if *v.p == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*v.p/v.unit), 10)
}

func (v number) setText(s string) error {
	if s == "" {
		return nil
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 0 {
		return fmt.Errorf("%w: write a whole number from 1 to 4294967295", errValue)
	}
	*v.p = time.Duration(n) * v.unit
	return nil
}

type seconds struct{ p *time.Duration }

func (v seconds) of() number              { return number{v.p, time.Second} }
func (v seconds) bytes() []byte           { return v.of().bytes() }
func (v seconds) setBytes(b []byte) error { return v.of().setBytes(b) }
func (v seconds) text() string            { return v.of().text() }
func (v seconds) setText(s string) error  { return v.of().setText(s) }

type micros struct{ p *time.Duration }

func (v micros) of() number              { return number{v.p, time.Microsecond} }
func (v micros) bytes() []byte           { return v.of().bytes() }
func (v micros) setBytes(b []byte) error { return v.of().setBytes(b) }
func (v micros) text() string            { return v.of().text() }
func (v micros) setText(s string) error  { return v.of().setText(s) }

// instant is in milliseconds since 1970.
type instant struct{ p *time.Time }

func (v instant) bytes() []byte {
	if v.p.IsZero() {
		return nil
	}
	return binary.BigEndian.AppendUint64(nil, uint64(v.p.UnixMilli()))
}

func (v instant) setBytes(b []byte) error {
	if len(b) != 8 {
		return errValue
	}
	n := binary.BigEndian.Uint64(b)
	if n == 0 || n > 1<<47 {
		return errValue
	}
	*v.p = time.UnixMilli(int64(n)).UTC()
	return nil
}

func (v instant) text() string {
	if v.p.IsZero() {
		return ""
	}
	return v.p.Format("2006-01-02T15:04:05.000Z")
}

func (v instant) setText(s string) (err error) {
	if s == "" {
		return nil
	}
	t, err := time.Parse("2006-01-02T15:04:05.000Z", s)
	if err != nil || t.UnixMilli() <= 0 || t.UnixMilli() > 1<<47 {
		return errValue
	}
	*v.p = t
	return nil
}

type raw struct{ p *[]byte }

func (v raw) bytes() []byte { return *v.p }
func (v raw) setBytes(b []byte) error {
	*v.p = b
	return nil
}
func (v raw) text() string { return base64.StdEncoding.EncodeToString(*v.p) }
func (v raw) setText(s string) (err error) {
	if s == "" {
		return nil
	}
	*v.p, err = base64.StdEncoding.Strict().DecodeString(s)
	return err
}

type nonce struct{ p *Nonce }

func (v nonce) bytes() []byte {
	if *v.p == (Nonce{}) {
		return nil
	}
	return v.p[:]
}

func (v nonce) setBytes(b []byte) error {
	if len(b) != len(Nonce{}) || Nonce(b) == (Nonce{}) {
		return errValue
	}
	*v.p = Nonce(b)
	return nil
}

func (v nonce) text() string { return base64.StdEncoding.EncodeToString(v.bytes()) }

func (v nonce) setText(s string) error {
	if s == "" {
		return nil
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil {
		return err
	}
	return v.setBytes(b)
}

// flow is two addresses, in text with a space between.
type flow struct{ p *Flow }

func (v flow) bytes() []byte { return append(v.p.Source.AsSlice(), v.p.Destination.AsSlice()...) }

func (v flow) setBytes(b []byte) error {
	from, ok := netip.AddrFromSlice(b[:len(b)/2])
	to, fine := netip.AddrFromSlice(b[len(b)/2:])
	if !ok || !fine || from.Is4In6() || to.Is4In6() || from.Is4() != to.Is4() {
		return errValue
	}
	*v.p = Flow{from, to}
	return nil
}

func (v flow) text() string {
	if *v.p == (Flow{}) {
		return ""
	}
	return v.p.Source.String() + " " + v.p.Destination.String()
}

func (v flow) setText(s string) error {
	if s == "" {
		return nil
	}
	from, to, _ := strings.Cut(s, " ")
	var f Flow
	if (address{&f.Source}).setText(from) != nil || (address{&f.Destination}).setText(to) != nil || f.Source.Is4() != f.Destination.Is4() ||
		!f.Source.IsValid() || !f.Destination.IsValid() {
		return errValue
	}
	*v.p = f
	return nil
}

// entries are a stack, in text with a semicolon between the fields of an entry.
type entries struct{ p *[]Entry }

func (v entries) bytes() (b []byte) {
	for i := range *v.p {
		one := appendFields(nil, (*v.p)[i].fields())
		b = binary.BigEndian.AppendUint16(b, uint16(len(one)))
		b = append(b, one...)
	}
	return b
}

func (v entries) setBytes(b []byte) error {
	for len(b) > 0 {
		if len(b) < 2 || len(b)-2 < int(binary.BigEndian.Uint16(b)) {
			return errValue
		}
		n := 2 + int(binary.BigEndian.Uint16(b))
		var e Entry
		if n == 2 {
			return errValue
		}
		if err := parseFields(b[2:n], e.fields()); err != nil {
			return err
		}
		*v.p, b = append(*v.p, e), b[n:]
	}
	return nil
}

func (v entries) text() string {
	var all []string
	for i := range *v.p {
		var one []string
		for _, f := range (*v.p)[i].fields() {
			if t := f.v.text(); t != "" {
				one = append(one, f.name+"="+escape(t))
			}
		}
		all = append(all, strings.Join(one, ";"))
	}
	return strings.Join(all, ",")
}

func (v entries) setText(s string) error {
	if s == "" {
		return nil
	}
	for part := range strings.SplitSeq(s, ",") {
		var e Entry
		fields := e.fields()
		next := 0
		for assignment := range strings.SplitSeq(part, ";") {
			name, text, ok := strings.Cut(assignment, "=")
			var plain string
			if !ok || unescape(text, &plain) != nil {
				return errValue
			}
			for next < len(fields) && fields[next].name != name {
				next++
			}
			if next == len(fields) {
				return fmt.Errorf("has an entry with %q, which is unknown or out of order", name)
			}
			if err := fields[next].v.setText(plain); err != nil {
				return err
			}
			next++
		}
		if len(appendFields(nil, e.fields())) == 0 {
			return errValue
		}
		*v.p = append(*v.p, e)
	}
	return nil
}

package nslp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

const version = 1

// MaxLength is the longest message in binary form that goes by a datagram, bytes: it fits
// there beside GIST's own objects.
const MaxLength = 1060

// tagModule is the module's name, which stands in the first line of the text form.
const tagModule = 0

// tagNonce is where the nonce is, in each version, and tagAnswers how answers are to be signed.
const (
	tagNonce   = 16
	tagAnswers = 22
)

// Append appends the binary form: version, type, two octets of zero, then fields of tag,
// length and value, each padded to whole words.
func (m *Message) Append(b []byte) []byte {
	b = append(b, version, byte(m.Type), 0, 0)
	b = appendField(b, tagModule, []byte(m.Module))
	return appendFields(b, m.fields())
}

func appendFields(b []byte, fields []field) []byte {
	for _, f := range fields {
		b = appendField(b, f.tag, f.v.bytes())
	}
	return b
}

func appendField(b []byte, tag uint16, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	b = binary.BigEndian.AppendUint16(b, tag)
	b = binary.BigEndian.AppendUint16(b, uint16(len(v)))
	b = append(b, v...)
	return append(b, make([]byte, -len(v)&3)...)
}

// ErrNoMessage says that a payload is not of this application.
var ErrNoMessage = errors.New("the payload is no NetServ message")

// Parse reads the binary form. Nothing that Append would write otherwise is taken: a
// signature is over the only form.
func Parse(b []byte) (*Message, error) {
	if len(b) < 4 || len(b)%4 != 0 || b[0] != version || Type(b[1]) < Setup || Type(b[1]) > Response || b[2]|b[3] != 0 {
		return nil, ErrNoMessage
	}
	m := &Message{Type: Type(b[1])}
	fields := append([]field{{tagModule, "module", str{&m.Module}}}, m.fields()...)
	if err := parseFields(b[4:], fields); err != nil {
		return nil, err
	}
	return m, m.check()
}

// fieldOf finds a field of a request whose form is not known: one of another version, or
// with other fields.
func fieldOf(b []byte, want uint16) []byte {
	if len(b) < 4 || Type(b[1]) == Response {
		return nil
	}
	for b = b[4:]; len(b) >= 4; {
		tag, size := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[2:]))
		padded := 4 + (size+3)&^3
		switch {
		case len(b) < padded:
			return nil
		case tag == want:
			return b[4 : 4+size]
		}
		b = b[padded:]
	}
	return nil
}

// parseFields reads fields, which stand in the order of their tags.
func parseFields(b []byte, fields []field) error {
	next := 0
	for len(b) > 0 {
		if len(b) < 4 {
			return ErrNoMessage
		}
		tag, n := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[2:]))
		padded := (n + 3) &^ 3
		if n == 0 || len(b) < 4+padded {
			return ErrNoMessage
		}
		for next < len(fields) && fields[next].tag != tag {
			next++
		}
		if next == len(fields) {
			return fmt.Errorf("field %d is unknown or out of order", tag)
		}
		f := fields[next]
		next++
		for _, zero := range b[4+n : 4+padded] {
			if zero != 0 {
				return fmt.Errorf("field %s is not padded with zeros", f.name)
			}
		}
		if err := f.v.setBytes(b[4 : 4+n]); err != nil {
			return fmt.Errorf("field %s %w", f.name, err)
		}
		b = b[4+padded:]
	}
	return nil
}

// check is what both forms ask for.
func (m *Message) check() error {
	switch {
	case strings.ContainsAny(m.Module, " \t"):
		return errors.New("the module's name has a space in it")
	case (m.Type == Setup || m.Type == Remove) && m.Module == "":
		return fmt.Errorf("%s names no module", m.Type)
	case m.Type == Trigger != (len(m.Wrapped) > 0):
		return errors.New("a TRIGGER wraps a request, and nothing else does")
	case m.Answers != "" && m.Answers != AnswersSigned:
		return fmt.Errorf("answers cannot be signed by %q: write %s", m.Answers, AnswersSigned)
	case m.Type == Setup && m.TTL == 0:
		return errors.New("SETUP has no ttl: say how many seconds the module is to stay")
	}
	if m.Type == Trigger {
		w, err := Parse(m.Wrapped)
		if err != nil {
			return fmt.Errorf("the request in the TRIGGER: %w", err)
		}
		if w.Type == Trigger || w.Type == Response {
			return fmt.Errorf("a TRIGGER cannot wrap a %s", w.Type)
		}
	}
	return nil
}

const protocolWord = "NETSERV/0.1"

// Text is the text form (NetServ, Figure 3): a first line with type and module, a line for
// each field, an empty line.
func (m *Message) Text() string {
	var b strings.Builder
	b.WriteString(m.Type.String())
	if m.Module != "" {
		b.WriteString(" " + escape(m.Module))
	}
	b.WriteString(" " + protocolWord + "\n")
	for i, f := range m.fields() {
		t := f.v.text()
		if t == "" && (m.Type != Setup || i >= paper) {
			continue
		}
		b.WriteString(f.name + ":" + t + "\n")
	}
	b.WriteString("\n")
	return b.String()
}

// ParseText reads the text form. Names of fields may be in capitals, and in any order.
func ParseText(s string) (*Message, error) {
	head, rest, _ := strings.Cut(strings.ReplaceAll(s, "\r\n", "\n"), "\n")
	words := strings.Fields(head)
	if len(words) < 2 || len(words) > 3 || words[len(words)-1] != protocolWord {
		return nil, fmt.Errorf("line 1: %q is not of the form SETUP MODULE %s", head, protocolWord)
	}
	m := &Message{}
	for t := Setup; t <= Response; t++ {
		if t.String() == words[0] {
			m.Type = t
		}
	}
	if m.Type == 0 {
		return nil, fmt.Errorf("line 1: %q is no request: SETUP, REMOVE, PROBE, TRIGGER", words[0])
	}
	if len(words) == 3 {
		if err := unescape(words[1], &m.Module); err != nil {
			return nil, fmt.Errorf("line 1: the module's name %w", err)
		}
	}
	if err := m.headers(rest); err != nil {
		return nil, err
	}
	return m, m.check()
}

func (m *Message) headers(rest string) error {
	fields, seen, number := m.fields(), map[string]bool{}, 1
	for line := range strings.SplitSeq(rest, "\n") {
		number++
		line = strings.TrimRight(line, " \t")
		if line == "" {
			break
		}
		name, text, ok := strings.Cut(line, ":")
		name = strings.ToLower(name)
		if !ok || seen[name] {
			return fmt.Errorf("line %d: %q is no header, or stands there twice: write name:value", number, line)
		}
		seen[name] = true
		known := false
		for _, f := range fields {
			if f.name != name {
				continue
			}
			known = true
			if err := f.v.setText(strings.TrimLeft(text, " ")); err != nil {
				return fmt.Errorf("line %d: header %s %w", number, name, err)
			}
		}
		if !known {
			return fmt.Errorf("line %d: there is no header %q", number, name)
		}
	}
	return nil
}

package nslp

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// AnswersSigned is how a request asks nodes to sign what they answer.
const AnswersSigned = "ed25519"

const replyContext = "onpath NETSERV/0.1 answer\x00"

// digestLength is how much of a SHA-256 stands for details that are left out, octets.
const digestLength = 16

// bare is the entry without its details, and without what others write: the address and the
// round trip are the node's before it, and the entries of the way back are their nodes'.
func (e *Entry) bare() Entry {
	b := *e
	b.Address, b.RTT, b.Back, b.Signature, b.Digest = netip.Addr{}, 0, nil, nil, nil
	b.leaveOut()
	return b
}

func (e *Entry) leaveOut() { e.Words, e.Modules, e.Blocks, e.Policy = "", nil, nil, nil }

// details is what stands for those of the entry: they may be left out of an answer that is
// too long, and the signature still holds.
func (e *Entry) details() []byte {
	if len(e.Digest) > 0 {
		return e.Digest
	}
	d := Entry{Words: e.Words, Modules: e.Modules, Blocks: e.Blocks, Policy: e.Policy}
	sum := sha256.Sum256(appendFields(nil, d.fields()))
	return sum[:digestLength]
}

// signed is what a node signs: its word on one request.
func (e *Entry) signed(request []byte) []byte {
	sum, bare := sha256.Sum256(request), e.bare()
	b := append([]byte(replyContext), sum[:]...)
	return appendFields(append(b, e.details()...), bare.fields())
}

func (e *Entry) sign(key ed25519.PrivateKey, request []byte) {
	e.Key = key.Public().(ed25519.PublicKey)
	e.Signature = ed25519.Sign(key, e.signed(request))
}

// shorten leaves the details out.
func (e *Entry) shorten() {
	if len(e.Signature) > 0 {
		e.Digest = e.details()
	}
	e.leaveOut()
}

// Prove looks at who signed each entry of a response to a request in binary form. What cannot
// be believed becomes unproved, with the reason. Known gives the keys of a node that are
// known, and learn is told of a node that shows its key for the first time: it is believed.
func (m *Message) Prove(request []byte, known func(node string) [][]byte, learn func(node string, key []byte)) {
	r, err := Parse(request)
	if err != nil || r.Answers == "" {
		return
	}
	prove(m.Stack, request, r.Wrapped, known, learn)
}

// prove is Prove for entries that answer a request, and those of the way back, which answer
// what it wraps.
func prove(stack []Entry, request, wrapped []byte, known func(string) [][]byte, learn func(string, []byte)) {
	for i := range stack {
		e := &stack[i]
		keys := known(e.Node)
		switch r := e.distrust(request, keys); {
		case r != nil:
			e.leaveOut()
			e.State, e.Reason, e.Words, e.Servers = Unproved, r.Reason, r.Words, nil
		case len(keys) == 0 && len(e.Signature) > 0:
			learn(e.Node, e.Key)
		}
		prove(e.Back, wrapped, nil, known, learn)
	}
}

// distrust is why an entry is not believed, if the node's keys are these; none: it is not known.
func (e *Entry) distrust(request []byte, keys [][]byte) *Refusal {
	short := len(e.Digest) > 0
	switch {
	case len(e.Signature) == 0 && len(keys) == 0 && e.State == Refused:
		return nil // it claims nothing: a node that cannot read the request says so
	case len(e.Signature) == 0:
		return &Refusal{"Unsigned", "the answer has no signature: it may be forged"}
	case len(keys) > 0 && !slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, e.Key) }):
		return &Refusal{"OtherKey", fmt.Sprintf("the answer is signed by key %s, which is not known as this node's",
			base64.StdEncoding.EncodeToString(e.Key))}
	case short && (len(e.Digest) != digestLength || e.Words != "" || len(e.Modules)+len(e.Blocks)+len(e.Policy) > 0),
		len(e.Key) != ed25519.PublicKeySize, !ed25519.Verify(e.Key, e.signed(request), e.Signature):
		return &Refusal{"WrongSignature", "the signature is not that of this answer to this request: it is forged, or was recorded"}
	}
	return nil
}

// Shortened is in the status of a response that lacks something because it goes by datagrams.
const Shortened = "the stack is cut: it does not fit into one datagram"

func (m *Message) shortened() bool { return strings.Contains(m.Status, Shortened) }

func (m *Message) unanswered() bool { return strings.HasPrefix(m.Status, NoAnswer) }

// partial reports whether another response may follow, that has more.
func (m *Message) partial() bool { return m.shortened() || m.unanswered() }

// more reports whether a response says more than another: it is from all nodes, or has more
// entries, or more of them.
func (m *Message) more(than *Message) bool {
	if m.unanswered() != than.unanswered() {
		return than.unanswered()
	}
	if a, b := count(m.Stack), count(than.Stack); a != b {
		return a > b
	}
	return len(entries{&m.Stack}.bytes()) > len(entries{&than.Stack}.bytes())
}

// count is how many entries a stack has, with those of the way back.
func count(stack []Entry) (n int) {
	for i := range stack {
		n += 1 + count(stack[i].Back)
	}
	return n
}

// fit is a response in binary form. Where it would be too long, the details of the entries
// that are furthest go first, then whole entries.
func fit(m *Message, most int) []byte {
	b := m.Append(nil)
	if len(b) <= most {
		return b
	}
	short := *m
	if short.Status = strings.TrimPrefix(m.Status+"; "+Shortened, "; "); m.shortened() {
		short.Status = m.Status
	}
	short.Stack = slices.Clone(m.Stack)
	for i := len(short.Stack) - 1; i >= 0; i-- {
		e := &short.Stack[i]
		e.Back = slices.Clone(e.Back)
		for j := len(e.Back) - 1; j >= 0; j-- {
			e.Back[j].shorten()
		}
		e.shorten()
		if b = short.Append(nil); len(b) <= most {
			return b
		}
	}
	for len(b) > most && short.cut() {
		b = short.Append(nil)
	}
	return b
}

// cut leaves the last entry out; false: there is but one.
func (m *Message) cut() bool {
	last := len(m.Stack) - 1
	if last < 0 {
		return false
	}
	if back := &m.Stack[last].Back; len(*back) > 0 {
		*back = (*back)[:len(*back)-1]
		return true
	}
	if last == 0 {
		return false
	}
	m.Stack = m.Stack[:last]
	return true
}

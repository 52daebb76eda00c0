package nslp

import (
	"crypto/ed25519"
	"crypto/sha256"
	"net/netip"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// Type is a message's.
type Type uint8

// The types of messages. Trigger holds a Setup, Remove or Probe that the last node sends
// back toward the requester (NetServ §4.5).
const (
	Setup Type = iota + 1
	Remove
	Probe
	Trigger
	Response
)

var typeWords = []string{Setup: "SETUP", Remove: "REMOVE", Probe: "PROBE", Trigger: "TRIGGER", Response: "RESPONSE"}

// String is the type as the text form has it.
func (t Type) String() string {
	if t < Setup || t > Response {
		return "UNKNOWN"
	}
	return typeWords[t]
}

// Nonce makes each request another one; the response has it, too.
type Nonce [16]byte

// Flow is where a request begins and toward where it goes.
type Flow struct{ Source, Destination netip.Addr }

// String is the form that people read.
func (f Flow) String() string { return f.Source.String() + " to " + f.Destination.String() }

// Inverted is the way back.
func (f Flow) Inverted() Flow { return Flow{f.Destination, f.Source} }

// Message is a request, or the response to one. Absent fields are zero.
type Message struct {
	Type Type
	// Module is the name of what is installed, removed or asked for; PROBE: empty for all.
	Module string

	// Dependencies are building blocks that the node must have.
	Dependencies []string
	// What the module is given: packets to or from FilterTo, of FilterProtocol, with FilterPort
	// at that end. Zero: all that the publisher may select.
	FilterPort     uint16
	FilterProtocol onpath.Protocol
	FilterTo       []netip.Prefix
	// Serve are ports at which the module serves, at an address of the node's that its answer
	// tells; none, with dependency http/1: tcp/80.
	Serve []onpath.ServedPort
	// Notification is where the publisher wants to be told; kept, and used by nobody yet.
	Notification string
	// Properties are the module's configuration: k=v.
	Properties []string
	// Fetch are hosts from which the module may fetch by HTTP (fetch/1): HOST, or HOST:PORT.
	Fetch []string
	// TTL is how long the module stays.
	TTL time.Duration
	// User is on whose account: the publisher's name for people.
	User string
	// URL is where the module is fetched from, Hash its SHA-256.
	URL  string
	Hash []byte
	// ModuleSignature is the publisher's of Hash.
	ModuleSignature []byte
	// Password proves FilterTo: it is found at each of these addresses (NetServ §3.2).
	Password string

	// Wrapped is the request in a TRIGGER, in binary form.
	Wrapped []byte

	// Key is the publisher's Ed25519 key, Time and Nonce make the request unique, Signature
	// is over all the fields.
	Key       []byte
	Time      time.Time
	Nonce     Nonce
	Signature []byte
	// Flow is along which way the request goes: it is signed for this one alone.
	Flow Flow
	// Answers is how nodes are to sign what they answer: AnswersSigned, or not.
	Answers string

	// Status is why a request failed as a whole; of responses.
	Status string
	// Stack are the answers of nodes, in path order from the requester on.
	Stack []Entry
}

// Entry is what one node answers.
type Entry struct {
	Node    string     `json:"node"`
	Address netip.Addr `json:"address"`
	// RTT is the round trip from the node before, or from the requester.
	RTT time.Duration `json:"rtt,omitempty"`
	// State is what became of the request here, Reason why, as one CamelCase word.
	State  string `json:"state,omitempty"`
	Reason string `json:"reason,omitempty"`
	Words  string `json:"words,omitempty"`
	// Modules of the publisher: NAME STATE SECONDS.
	Modules []string `json:"modules,omitempty"`
	Blocks  []string `json:"blocks,omitempty"`
	// Policy: k=v.
	Policy []string `json:"policy,omitempty"`
	// Servers are where modules serve: MODULE PROTOCOL ADDRESS:PORT.
	Servers []string `json:"servers,omitempty"`
	// Back are the entries of a TRIGGER's request, from this node back to the requester.
	Back []Entry `json:"back,omitempty"`
	// Key is the node's, Ed25519. Signature is its own, over the request and what it says of it.
	Key       []byte `json:"key,omitempty"`
	Signature []byte `json:"signature,omitempty"`
	// Digest stands for words, modules, blocks and policy where they are left out.
	Digest []byte `json:"digest,omitempty"`
}

// States of entries.
const (
	Installed = "installed"
	Prolonged = "prolonged"
	Removed   = "removed"
	Refused   = "refused"
	DryRun    = "dry-run" // policy would allow it
	Present   = "present" // PROBE: some module of the publisher runs
	Absent    = "absent"
	Unproved  = "unproved" // set by the requester: the answer is not signed as it must be
)

// BlockHTTP is the building block by which modules answer HTTP.
const BlockHTTP = "http/1"

// Ports are those at which a SETUP has its module serve.
func (m *Message) Ports() []onpath.ServedPort {
	if len(m.Serve) == 0 && slices.Contains(m.Dependencies, BlockHTTP) {
		return []onpath.ServedPort{{Protocol: "tcp", Port: 80}}
	}
	return m.Serve
}

// selects reports whether a SETUP says which packets its module is given.
func (m *Message) selects() bool {
	return m.FilterPort != 0 || m.FilterProtocol != "" || len(m.FilterTo) > 0
}

const signedContext = "onpath NETSERV/0.1 request\x00"
const moduleContext = "onpath NETSERV/0.1 module\x00"

// Sign fills in who asks, when, that answers are to be signed, and the signature over all of it.
func (m *Message) Sign(key ed25519.PrivateKey, now time.Time, nonce Nonce) {
	m.Key, m.Time, m.Nonce, m.Signature = key.Public().(ed25519.PublicKey), now.UTC().Truncate(time.Millisecond), nonce, nil
	m.Answers = AnswersSigned
	if len(m.Hash) > 0 {
		m.ModuleSignature = ed25519.Sign(key, append([]byte(moduleContext), m.Hash...))
	}
	m.Signature = ed25519.Sign(key, m.signed())
}

func (m *Message) signed() []byte {
	bare := *m
	bare.Signature = nil
	return append([]byte(signedContext), bare.Append(nil)...)
}

// Refusal is why a request is not done: Reason as one CamelCase word, and a sentence.
type Refusal struct{ Reason, Words string }

// Error implements error.
func (r *Refusal) Error() string { return r.Reason + ": " + r.Words }

// Verify checks the signatures against the key that the request names.
func (m *Message) Verify() *Refusal {
	switch {
	case len(m.Signature) == 0:
		return &Refusal{"Unsigned", "the request is not signed"}
	case len(m.Key) != ed25519.PublicKeySize || !ed25519.Verify(m.Key, m.signed(), m.Signature):
		return &Refusal{"WrongSignature", "the signature is not that of the request and its key"}
	case len(m.Hash) > 0 && !ed25519.Verify(m.Key, append([]byte(moduleContext), m.Hash...), m.ModuleSignature):
		return &Refusal{"WrongSignature", "the signature of the module is not that of its hash and the key"}
	}
	return nil
}

// MaxAge is how far a request's time may be from a node's clock.
const MaxAge = 2 * time.Minute

// HashOf is the hash by which a module is named.
func HashOf(module []byte) []byte {
	h := sha256.Sum256(module)
	return h[:]
}

package onpath

import "time"

// Event is something that happened, for people. Repeats are counted, not added.
type Event struct {
	TypeMeta
	Metadata Metadata  `json:"metadata"`
	Spec     EventSpec `json:"spec"`
}

// EventSpec is one event.
type EventSpec struct {
	Time    time.Time `json:"time"`
	First   time.Time `json:"first,omitzero"` // of a repeated one
	Count   int       `json:"count,omitempty"`
	About   string    `json:"about"`             // Key.String of the object
	Node    string    `json:"node,omitempty"`    // where it was seen
	Reason  string    `json:"reason"`            // one CamelCase word
	Message string    `json:"message,omitempty"` // a sentence
	Warning bool      `json:"warning,omitempty"`
}

// Meta implements Object.
func (e *Event) Meta() *Metadata { return &e.Metadata }

// ObjectKind implements Object.
func (e *Event) ObjectKind() Kind { return KindEvent }

// NodeEvent is an event as a node reports it.
type NodeEvent struct {
	Time    time.Time `json:"time"`
	About   string    `json:"about"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Warning bool      `json:"warning,omitempty"`
}

// Package wire holds the bodies of the API's requests and answers that are not
// objects themselves, shared by the server (api) and its client (api/client).
package wire

import (
	"encoding/json"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
)

// The largest bodies of requests, in bytes: of one object, and of an apply.
const (
	MaxObjectBody = 4 << 20
	MaxApplyBody  = 64 << 20
)

// Trailer is the HTTP trailer of a stream that failed after it had begun: an
// onpath.Error as JSON.
const Trailer = "Onpath-Error"

// Problem is every error's body (RFC 9457, application/problem+json).
type Problem struct {
	Type   string        `json:"type"`
	Title  string        `json:"title"`
	Status int           `json:"status"`
	Detail string        `json:"detail"`
	Errors onpath.Errors `json:"errors"`
}

// List is all objects of a kind, and the revision they are of: watch from it.
type List[T any] struct {
	Items    []T   `json:"items"`
	Revision int64 `json:"revision"`
	// Continue asks for the next page; "" after the last one, and where none was asked for.
	Continue string `json:"continue,omitempty"`
}

// Apply asks for objects to be as they are given, and others to go; all or
// nothing. Objects that are so already are not written.
type Apply struct {
	Objects []json.RawMessage `json:"objects,omitempty"`
	Delete  []ObjectRef       `json:"delete,omitempty"`
	// Force lets nodes be deleted that are away, whatever they had; it goes with
	// deletions of nodes alone.
	Force bool `json:"force,omitempty"`
	// DryRun changes nothing and says what would happen.
	DryRun bool `json:"dryRun,omitempty"`
	// Confirm undoes everything after this time unless it is confirmed.
	Confirm onpath.Duration `json:"confirm,omitempty"`
	// NoVerify leaves out the proof that the rules which follow keep the chains'
	// promises.
	NoVerify bool `json:"noVerify,omitempty"`
	// Request is an id that the asker chose for this request and uses for no other
	// one, at most 64 characters. Who got no answer asks again with the same one
	// within the hour: what was done is not done twice, and is answered alike.
	Request string `json:"request,omitempty" maxLength:"64"`
}

// The shortest and the longest time that a confirmation may take.
const (
	MinConfirm = time.Second
	MaxConfirm = 24 * time.Hour
)

// ConfirmRange refuses a time to confirm that is out of range.
func ConfirmRange(d time.Duration) error {
	if d >= MinConfirm && d <= MaxConfirm {
		return nil
	}
	e := onpath.Errorf(onpath.CodeInvalid, "a time to confirm of %s is not possible", onpath.Duration(d))
	e.Remedy = "write one from 1s to 24h"
	return e
}

// ObjectRef names an object.
type ObjectRef struct {
	Kind   onpath.Kind `json:"kind"`
	Tenant string      `json:"tenant,omitempty"`
	Name   string      `json:"name"`
}

// RefOf is the reference to k.
func RefOf(k onpath.Key) ObjectRef { return ObjectRef(k) }

// Key is the key of r.
func (r ObjectRef) Key() onpath.Key {
	k := onpath.Key(r)
	if k.Tenant == "" && k.Kind.Tenanted() {
		k.Tenant = onpath.DefaultTenant
	}
	return k
}

// Applied says what an apply did, or would do.
type Applied struct {
	Changes []ObjectChange  `json:"changes"`
	Preview *onpath.Preview `json:"preview,omitempty"` // of a dry run
	Confirm *Pending        `json:"confirm,omitempty"`
	// Notes say in words what else is worth knowing of what was done: which connections
	// are cut, which chains lose traffic. Those of a dry run are in its preview.
	Notes []string `json:"notes,omitempty"`
}

// ObjectChange is what became of one object.
type ObjectChange struct {
	ObjectRef
	Action  Action        `json:"action"`
	Version int64         `json:"version,omitempty"`
	Diff    []FieldChange `json:"diff,omitempty"`
	// Quote is what the pool said of a reservation.
	Quote *onpath.Quote `json:"quote,omitempty"`
}

// Move asks for an instance to leave its node.
type Move struct {
	To string `json:"to,omitempty"` // a node; empty: the least loaded
}

// Action is what is done to an object.
type Action string

// The actions.
const (
	Created   Action = "create"
	Updated   Action = "update"
	Deleted   Action = "delete"
	Unchanged Action = "unchanged"
)

// FieldChange is one difference. An absent Old was not there before, an absent
// New is not there any more.
type FieldChange struct {
	Field string          `json:"field"`
	Old   json.RawMessage `json:"old,omitempty"`
	New   json.RawMessage `json:"new,omitempty"`
}

// ObjectVersion is an object as it was written once.
type ObjectVersion struct {
	Number int       `json:"number"` // of the object's versions, from 1
	At     time.Time `json:"at"`
	By     string    `json:"by,omitempty"` // who wrote it, such as onpath:operator/alice; empty: not known
	// Current: it is in force.
	Current bool            `json:"current,omitempty"`
	Object  json.RawMessage `json:"object"`         // without status
	Diff    []FieldChange   `json:"diff,omitempty"` // from the version before, where that is kept
}

// Pending is an apply that waits for its confirmation.
type Pending struct {
	ID       string    `json:"id"`
	Tenant   string    `json:"tenant,omitempty"` // of the user who applied; empty: an operator
	By       string    `json:"by,omitempty"`     // who applied, such as onpath:operator/alice
	Deadline time.Time `json:"deadline"`
}

// Unconfirmed is an apply that waits, and what it did: that is undone at its
// deadline unless it is confirmed.
type Unconfirmed struct {
	Pending
	Changes []ObjectChange `json:"changes"`
}

// Undone is what became of an apply that was undone.
type Undone struct {
	// Changes are what undoing it did.
	Changes []ObjectChange `json:"changes"`
	// Kept is left as it is: others changed it since, or need it.
	Kept []KeptObject `json:"kept,omitempty"`
}

// KeptObject is one that is left as it is; Why is a sentence's end about it.
type KeptObject struct {
	ObjectRef
	Why string `json:"why"`
}

// WatchEvent is one line of a watch. A line without a key says only how far the
// watch is: resume from Revision.
type WatchEvent struct {
	Revision int64           `json:"revision"`
	Key      *ObjectRef      `json:"key,omitempty"`
	Object   json.RawMessage `json:"object,omitempty"` // absent: deleted
}

// Flow is one line of a list of flow entries.
type Flow struct {
	Node  string           `json:"node"`
	Entry onpath.FlowEntry `json:"entry"`
}

// PerNode is an answer that each node gives by itself; Away says of the others
// why they did not.
type PerNode[T any] struct {
	Nodes map[string]T      `json:"nodes"`
	Away  map[string]string `json:"away,omitempty"`
}

// Token is a join token; Word is shown once.
type Token struct {
	Word    string    `json:"word"`
	ID      string    `json:"id"`
	Expires time.Time `json:"expires"`
}

// Join redeems a join token.
type Join struct {
	Secret string `json:"secret"`
	// Name of the node, where the token names none.
	Name string `json:"name,omitempty"`
	// Request is a certificate request in PEM.
	Request string `json:"request"`
}

// Joined is the certificate for it.
type Joined struct {
	Certificate string `json:"certificate"` // PEM
	Authority   string `json:"authority"`   // PEM
	Identity    string `json:"identity"`
}

// Renew asks for a new certificate for the same key.
type Renew struct {
	Request string `json:"request"`
}

// Revoke makes all certificates of an identity unacceptable
// (onpath:node/NAME, onpath:user/TENANT/NAME, onpath:operator/NAME).
type Revoke struct {
	Identity string `json:"identity"`
}

// KeyRotation says how far the rotation of the server's keys is.
type KeyRotation struct {
	// Authority of certificates; nil: the server has none.
	Authority *auth.Rotation `json:"authority,omitempty"`
	// Secret: the server's own secret is being rotated, and the one before is good, too.
	Secret bool `json:"secret"`
	// Sealed are the Secrets that only the secret before opens.
	Sealed []string `json:"sealed,omitempty"`
}

// Rotate begins the rotation of one of the server's keys, or ends it.
type Rotate struct {
	End bool `json:"end,omitempty"`
	// Force ends it although nodes would have to join again.
	Force bool `json:"force,omitempty"`
}

// Resume accepts users and tokens of a restored backup again.
type Resume struct {
	// Names are identities and ids of tokens; All stands for all that are suspended.
	Names []string `json:"names,omitempty"`
	All   bool     `json:"all,omitempty"`
}

// Names are identities, and ids of tokens.
type Names struct {
	Names []string `json:"names"`
}

// Version is what the server is.
type Version struct {
	Version string `json:"version"`
	API     string `json:"api"`
}

// Ready is the server's own state.
type Ready struct {
	Ready bool     `json:"ready"`
	Nodes []string `json:"nodes,omitempty"` // connected
	// Problems in words.
	Problems []string `json:"problems,omitempty"`
	// Store is what the server's own store holds; without it the store is an etcd cluster.
	Store *onpath.StoreUse `json:"store,omitempty"`
}

// Backup says what a backup is of.
type Backup struct {
	Version string    `json:"version"` // of the server
	API     string    `json:"api"`
	At      time.Time `json:"at"`
}

package onpath

import "time"

// LogEntry is one entry of the operator's public log. Entries about claims and about whose
// traffic tenants intercept are public in clear; of all others the log has a salted hash,
// and operators and the tenant read what stands behind it (onpath audit).
type LogEntry struct {
	Time time.Time `json:"time"`
	What LogWhat   `json:"what"`
	// By is who did it, as certificates name them; empty: onpath itself.
	By     string `json:"by,omitempty"`
	Tenant string `json:"tenant,omitempty"`
	// Object is what it is about, such as "chain acme/web".
	Object string `json:"object,omitempty"`
	// Life says that the object begins or ends with this entry.
	Life LogLife `json:"life,omitempty"`
	// Message says more, for people.
	Message string `json:"message,omitempty"`

	// Prefixes are those claimed or intercepted; 0.0.0.0/0 and ::/0 stand for any.
	Prefixes []Prefix `json:"prefixes,omitempty"`
	// Method is how the tenant has proved what makes them its own.
	Method ClaimMethod `json:"proof,omitempty"`
	State  ClaimState  `json:"state,omitempty"`
	// Cloudlets are where the interception begins or ends.
	Cloudlets []string `json:"cloudlets,omitempty"`
	// Functions are what intercepted packets pass, as TENANT/NAME@hmac-sha256:HASH of the
	// function's specification, by a key of the server's: another hash, another specification.
	Functions []string `json:"functions,omitempty"`
}

// LogLife is what a change means for an object's life.
type LogLife string

// The ends of an object's life.
const (
	LogCreated LogLife = "created"
	LogDeleted LogLife = "deleted"
)

// LogWhat names what an entry is about.
type LogWhat string

// What entries are about.
const (
	LogClaim   LogWhat = "claim"   // a claim was made, or its state changed
	LogBegin   LogWhat = "begin"   // a chain or a leased module intercepts from now on
	LogEnd     LogWhat = "end"     // and no longer
	LogChange  LogWhat = "change"  // an object was created, changed or deleted
	LogRefused LogWhat = "refused" // a sign-in, or what who signed in may not
	LogExec    LogWhat = "exec"    // a command in an instance
	LogCapture LogWhat = "capture" // packets were read
	LogLimit   LogWhat = "limit"   // an alert has a source limited, or its time is over
	LogAccess  LogWhat = "access"  // a token or certificate was made or taken back
)

// Public reports whether everybody may read the entry.
func (e *LogEntry) Public() bool { return e.What == LogClaim || e.What == LogBegin || e.What == LogEnd }

// Overlaps reports whether the entry is about a prefix.
func (e *LogEntry) Overlaps(p Prefix) bool {
	for _, q := range e.Prefixes {
		if q.Overlaps(p.Prefix) {
			return true
		}
	}
	return false
}

// LoggedEntry is an entry with its place in the log.
type LoggedEntry struct {
	Index int64 `json:"index"`
	LogEntry
}

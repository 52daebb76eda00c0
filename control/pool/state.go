package pool

import (
	"github.com/onpath/onpath"
)

// state is what decisions are taken by.
type state struct {
	promises   promises
	rows       rows
	accounting accounting
	broken     bool // what was written last is not known: everything is read again
	loads      int  // how often everything was read: decisions of before are void
	clock      onpath.Clock
	use        func(reservation onpath.Key) Use // nil: unknown
}

// admission decides by what is known now.
func (s *state) admission() admission {
	return admission{promises: &s.promises, rows: &s.rows, accounting: &s.accounting, use: s.use, now: s.clock()}
}

// clear leaves what is read from the store empty.
func (s *state) clear() {
	s.promises.clear()
	s.rows.clear()
	s.accounting.clear()
	s.loads++
}

// ready is why nothing can be decided yet; nil: decisions go on.
func (s *state) ready() error {
	if s.broken {
		return onpath.Errorf(onpath.CodeUnavailable, "the server is still reading its reservations and accounts")
	}
	return nil
}

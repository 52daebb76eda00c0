package instance

import (
	"context"
	"time"

	"github.com/onpath/onpath"
)

// leftOutEvery is the time between two looks at whether all that an instance prints
// is kept; leftOutOver is how long it must have been so for nobody to be told any more.
const (
	leftOutEvery = 2 * time.Second
	leftOutOver  = time.Minute
)

// watchLog tells when an instance prints more than is kept, until the returned
// function is called.
func (in logs) watchLog(ctx context.Context, p onpath.Process) (stop func()) {
	t, ok := p.(onpath.Talkative)
	if !ok {
		return func() {}
	}
	_, end := watch(ctx, func(ctx context.Context, _ func(struct{})) { in.tellLeftOut(ctx, t) })
	return func() {
		end()
		in.st.setLeftOut("")
	}
}

func (in logs) tellLeftOut(ctx context.Context, t onpath.Talkative) {
	known, _ := t.LeftOut() // of an adopted one: told by the agent before, or over
	var last time.Time
	for in.s.part.Clock.Sleep(ctx, leftOutEvery) == nil {
		now := in.s.part.Clock.Now()
		sum, why := t.LeftOut()
		switch {
		case sum > known:
			known, last = sum, now
			if words := "part of its log is left out: " + why; in.st.setLeftOut(words) {
				in.s.part.TellInstance(in.current(), true, "LogLeftOut", "%s", words)
			}
		case now.Sub(last) >= leftOutOver:
			in.st.setLeftOut("")
		}
	}
}

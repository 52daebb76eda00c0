package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/lab"
)

func TestProbeHint(t *testing.T) {
	if h := probeHint([]lab.Summary{{Name: "quickstart"}}); !strings.HasSuffix(h, "of lab quickstart") {
		t.Error(h)
	}
	if h := probeHint(nil); !strings.HasPrefix(h, "in a lab, ") {
		t.Error(h)
	}
}

// TestInterruptedFault: who breaks off a measurement is told what the fault does.
func TestInterruptedFault(t *testing.T) {
	now := time.Now()
	at := func(kind onpath.FaultKind, until time.Time) error {
		return brokenOff(&faultDone{Kind: string(kind), Target: "default/web", Until: until}, now)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, before := begin(ctx, func(context.Context) (*faultDone, error) {
		t.Error("the fault was caused after all")
		return &faultDone{}, nil
	})
	during, stop := context.WithCancel(t.Context())
	_, meanwhile := begin(during, func(ctx context.Context) (*faultDone, error) {
		stop()
		return nil, ctx.Err()
	})
	for _, c := range []struct {
		err  error
		want string
	}{
		{at(onpath.FaultStall, now.Add(time.Minute)), "stall-instance on default/web goes on until " + now.Add(time.Minute).Local().Format(time.TimeOnly)},
		{at(onpath.FaultDrop, now.Add(-time.Second)), "drop on default/web is over"},
		{at(onpath.FaultKill, time.Time{}), "the node starts the instance again"},
		{before, "interrupted before the fault began; nothing was done"},
		{meanwhile, "if it began, it ends by itself"},
	} {
		if !errors.Is(c.err, context.Canceled) || exitCode(c.err) != exitInterrupted || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v, want %q", c.err, c.want)
		}
	}
}

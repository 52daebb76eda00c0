package api

import (
	"testing"
	"time"

	"github.com/onpath/onpath/api/wire"
)

// TestReadyForStrangers: however many strangers ask, the server looks once a second.
func TestReadyForStrangers(t *testing.T) {
	var l lastReady
	now, looked := time.Unix(1_700_000_000, 0), 0
	for range 3 {
		for range 100 {
			l.reply(now, func() wire.Ready { looked++; return wire.Ready{Ready: looked == 2} })
		}
		now = now.Add(readyFor)
	}
	if looked != 3 {
		t.Errorf("it looked %d times", looked)
	}
	if l.reply(now.Add(-time.Hour), func() wire.Ready { return wire.Ready{Ready: true} }); !l.last.Ready {
		t.Error("a clock that is set back leaves an old answer")
	}
}

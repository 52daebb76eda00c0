package impair_test

import (
	"testing"
	"time"

	"github.com/onpath/onpath/internal/impair"
)

// TestLoss sends frames over a veth pair: all are lost, then half, then, when the
// time is over, none, with nobody having undone anything.
func TestLoss(t *testing.T) {
	withCable(t, func(c *cable) error {
		const span, short = time.Minute, 300 * time.Millisecond
		if err := impair.Loss("a", impair.Sent, 1, span); err != nil {
			return err
		}
		if n := c.through(t, 200); n != 0 {
			t.Errorf("%d of 200 frames passed a cut", n)
		}
		if err := impair.Loss("a", impair.Sent, 0.5, span); err != nil {
			return err
		}
		if n := c.through(t, 1000); n < 350 || n > 650 {
			t.Errorf("%d of 1000 frames passed at a loss of a half", n)
		}
		if err := impair.Loss("a", impair.Sent, 1, short); err != nil {
			return err
		}
		time.Sleep(short + 10*time.Millisecond) // its own end is earlier: it began before it returned
		if n := c.through(t, 200); n != 200 {
			t.Errorf("%d of 200 frames passed after the end", n)
		}
		if err := impair.Clear("a"); err != nil {
			t.Error(err)
		}
		if err := impair.Loss("b", impair.Received, 1, span); err != nil {
			return err
		}
		if n := c.through(t, 200); n != 0 {
			t.Errorf("%d of 200 frames passed a device that receives nothing", n)
		}
		if err := impair.Clear("b"); err != nil {
			t.Error(err)
		}
		if n := c.through(t, 200); n != 200 {
			t.Errorf("%d of 200 frames passed when all was cleared", n)
		}
		if err := impair.Clear("nosuch"); err != nil {
			t.Error("a device that is gone:", err)
		}
		if err := impair.Loss("a", impair.Sent, 1.5, span); err == nil {
			t.Error("a loss of 1.5 is taken")
		}
		return nil
	})
}

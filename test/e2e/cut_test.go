package e2e

import (
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestCutWaiting: a chain with existing: cut resets both ends of the connections older than
// it, also an end that only waits for the other: it never sends what could be answered.
func TestCutWaiting(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	ended := make(chan error, 1)
	speak := func(c net.Conn) { // until it is told that this is over
		for {
			if _, err := c.Write([]byte{1}); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	wait := func(c net.Conn) {
		b := make([]byte, 1<<10)
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		for {
			if _, err := c.Read(b); err != nil {
				ended <- err
				return
			}
		}
	}
	for _, address := range []string{"10.9.0.2", "fd09::2"} {
		for name, ends := range map[string]struct{ origin, client func(net.Conn) }{
			"the client waits": {speak, wait},
			"the origin waits": {wait, speak},
		} {
			t.Run(name+" "+address, func(t *testing.T) {
				srv := serveTCP(t, func(c *net.TCPConn) { ends.origin(c) })
				c, err := dialTCP(t, address, srv.port, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				go ends.client(c)
				time.Sleep(100 * time.Millisecond) // some bytes arrive
				yaml := strings.Replace(pairChain, "through: [{deployment: pair, LOST}]", "existing: cut\n  through: [{deployment: pair, none: drop}]", 1)
				apply(ctx, t, strings.Replace(yaml, "name: failing", "name: cutting", 1))
				active(ctx, t, "cutting")
				select {
				case err := <-ended:
					if !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("it ended with %v, must be reset", err)
					}
				case <-time.After(time.Minute):
					t.Error("it still waits")
					c.Close()
					<-ended
				}
				c.Close()
			})
		}
	}
}

package auth

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestClocksOff: a server and a node whose clocks are hours apart get along; days
// apart, the message says that it is the clocks.
func TestClocksOff(t *testing.T) {
	for ahead, want := range map[time.Duration]string{
		0: "", 23 * time.Hour: "", -23 * time.Hour: "",
		72 * time.Hour: "one of the two clocks is wrong", -100 * 24 * time.Hour: "one of the two clocks is wrong",
	} {
		a, err := OpenAuthority(t.TempDir(), func() time.Time { return time.Now().Add(ahead) })
		if err != nil {
			t.Fatal(err)
		}
		here, there := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = tls.Server(there, a.ServerTLS()).Handshake() // the client judges
			there.Close()
		}()
		err = tls.Client(here, PinnedTLS(a.Pin())).Handshake()
		here.Close()
		<-done
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || onpath.CodeOf(err) != onpath.CodeForbidden) {
			t.Errorf("server ahead by %s: %v", ahead, err)
		}
	}
}

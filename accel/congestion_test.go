package accel

import (
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// TestUnknownCongestion: a congestion control that this machine does not have is refused, and the
// leg of another machine's relay that asks for it keeps the kernel's default.
func TestUnknownCongestion(t *testing.T) {
	h := NewHost(slog.New(slog.DiscardHandler), t.TempDir())
	err := h.Set("x", Instance{Work: &onpath.RelayWork{Congestion: "nosuch"}})
	if err == nil || !strings.Contains(err.Error(), `congestion control "nosuch"`) {
		t.Errorf("an unknown one: %v", err)
	}
	if err := mayCongest("reno"); err != nil {
		t.Errorf("one that each kernel has: %v", err)
	}
	l, err := ListenRelays(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := dialRelay(t.Context(), l.Addr().(*net.TCPAddr).AddrPort(), []byte{1}, legOptions{congestion: "nosuch"})
	if err != nil {
		t.Fatalf("a leg: %v", err)
	}
	_ = c.Close()
}

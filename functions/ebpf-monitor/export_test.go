package monitor

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestExportAgain: what could not be sent is sent later, all of it, over a new
// connection, and a warning comes once.
func TestExportAgain(t *testing.T) {
	l, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var log bytes.Buffer
	e := exporter{log: slog.New(slog.NewTextHandler(&log, nil))} // there is no way to it yet
	defer e.close()
	n := uint64(0)
	round := func() error { // ten packets more
		n += 10
		after := map[countKey]countValue{{Protocol: 17, Family: 4}: {Packets: n, Bytes: 100 * n}}
		err := e.send(after, time.Now(), monotonic())
		e.tell(err)
		return err
	}
	fails := func(want int) {
		t.Helper()
		if round() == nil {
			t.Fatal("flows are sent to nobody")
		}
		if got := strings.Count(log.String(), "level=WARN"); got != want {
			t.Errorf("%d warnings, want %d:\n%s", got, want, &log)
		}
	}
	gets := func(want uint64) {
		t.Helper()
		if err := round(); err != nil {
			t.Fatal(err)
		}
		l.SetReadDeadline(time.Now().Add(time.Minute))
		m := make([]byte, 2000)
		size, err := l.Read(m)
		if err != nil {
			t.Fatal(err)
		}
		// packets, bytes and two times end the message, 8 bytes each
		if got := binary.BigEndian.Uint64(m[size-32:]); got != want {
			t.Errorf("the collector is told of %d packets, must be %d", got, want)
		}
	}
	fails(1)
	fails(1)
	e.collector = netip.MustParseAddrPort(l.LocalAddr().String())
	gets(30)
	e.conn.Close() // as with an address that has gone
	fails(1)       // still the same trouble
	gets(20)
	gets(10)
	e.conn.Close()
	fails(2)
	gets(20)
}

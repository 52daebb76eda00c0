package ebpf

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// TestDrainEnds: one look at the punt port ends though packets come all the time.
func TestDrainEnds(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	frame := make([]byte, frameHeader+20)
	copy(frame[vnetHeader:], []byte{0x02, 0x6f, puntAsleep, 0, 0, 16})
	send := func() {
		if _, err := unix.Write(fds[1], frame); err != nil {
			t.Error(err)
		}
	}
	taken := 0
	q := &puntPort{from: fds[0], buffer: make([]byte, frameHeader+packetFrames), taken: map[onpath.VportID]uint32{}}
	q.take = func(p onpath.Punted) {
		if taken++; p.Vport != 16 {
			t.Errorf("%+v", p)
		}
		if taken <= 2*puntFrames {
			send()
		}
	}
	send()
	if err := q.drain(); err != nil || taken != puntFrames {
		t.Errorf("%d packets were taken at once, must be %d: %v", taken, puntFrames, err)
	}
}

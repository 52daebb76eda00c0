package demo

import (
	"bytes"
	"fmt"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/netnsrun"
)

// Hear listens at devices of a network for frames that have a mark; stop says how many
// there were of which, by what stands behind the mark up to a space.
func Hear(netns, mark string, devices ...string) (stop func() map[string]int, err error) {
	var fds []unix.PollFd
	closed := func() {
		for _, fd := range fds {
			_ = unix.Close(int(fd.Fd))
		}
	}
	err = netnsrun.Do(netns, func() error {
		for _, d := range devices {
			fd, err := packetSocket(d)
			if err == nil {
				fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
				err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", d, err)
			}
		}
		return nil
	})
	if err != nil {
		closed()
		return nil, err
	}
	heard, done := map[string]int{}, make(chan struct{})
	var stopped atomic.Bool
	go func() {
		defer close(done)
		b := make([]byte, 64<<10)
		for {
			last := stopped.Load()
			ready, _ := unix.Poll(fds, 50)
			for i := range fds {
				n, _, err := unix.Recvfrom(int(fds[i].Fd), b, unix.MSG_DONTWAIT)
				if k := bytes.Index(b[:max(n, 0)], []byte(mark)); err == nil && k >= 0 {
					what, _, _ := strings.Cut(string(b[k+len(mark):n]), " ")
					heard[what+" at "+devices[i]]++
				}
			}
			if last && ready <= 0 {
				return
			}
		}
	}()
	return func() map[string]int {
		stopped.Store(true)
		<-done
		closed()
		return heard
	}, nil
}

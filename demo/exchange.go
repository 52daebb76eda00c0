package demo

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// exchangePort is where a branch answers the other one.
const exchangePort = "8700"

// exchangeBytes is how much goes each way.
const exchangeBytes = 32 << 10

// RunExchangeServer sends back what connections to its addresses send, until ctx ends.
func RunExchangeServer(ctx context.Context, addresses []string) error {
	for _, a := range addresses {
		l, err := net.Listen("tcp", a)
		if err != nil {
			return err
		}
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					_, _ = io.Copy(c, c)
				}()
			}
		}()
	}
	<-ctx.Done()
	return nil
}

// ExchangeSpec is a load of short connections that send data and want it back.
type ExchangeSpec struct {
	To      []string      `json:"to"`
	For     time.Duration `json:"for"`
	Timeout time.Duration `json:"timeout"` // of one
	// Data is random and new each time, or as it is named: data or text, always the same.
	Data  string `json:"data,omitempty"`
	Bytes int    `json:"bytes,omitempty"` // default exchangeBytes
	Once  bool   `json:"once,omitempty"`
}

// sent is what a connection sends.
func (s *ExchangeSpec) sent() []byte {
	out := make([]byte, cmp.Or(s.Bytes, exchangeBytes))
	switch s.Data {
	case "text":
		var b bytes.Buffer
		r := rand.New(rand.NewPCG(7, 7))
		for b.Len() < len(out) {
			fmt.Fprintf(&b, "On day %d of the year branch %d sold %d boxes of %s.\n", 1+r.IntN(365), r.IntN(900), r.IntN(100),
				[]string{"apples", "pears", "nails", "paper", "string"}[r.IntN(5)])
		}
		copy(out, b.Bytes())
	case "data":
		_, _ = rand.NewChaCha8([32]byte{7}).Read(out)
	default:
		for i := range out {
			out[i] = byte(rand.Uint32())
		}
	}
	return out
}

// ExchangeResult is what came of it.
type ExchangeResult struct {
	Done   int    `json:"done"`
	Failed int    `json:"failed"`
	Wrong  int    `json:"wrong"` // other data came back
	Error  string `json:"error,omitempty"`
}

var errChanged = errors.New("other data came back")

// RunExchange has one connection after the other to each address exchange data.
func RunExchange(ctx context.Context, s ExchangeSpec) (r ExchangeResult, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	end := time.Now().Add(s.For)
	for _, to := range s.To {
		wg.Go(func() {
			for ctx.Err() == nil && time.Now().Before(end) {
				err := exchange(to, s.sent(), s.Timeout)
				mu.Lock()
				switch {
				case err == nil:
					r.Done++
				case errors.Is(err, errChanged):
					r.Wrong++
				default:
					r.Failed, r.Error = r.Failed+1, err.Error()
				}
				mu.Unlock()
				if s.Once {
					return
				}
			}
		})
	}
	wg.Wait()
	return r, ctx.Err()
}

func exchange(to string, sent []byte, timeout time.Duration) error {
	c, err := net.DialTimeout("tcp", to, timeout)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(timeout))
	failed := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		failed <- err
	}()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if !bytes.Equal(sent, got) {
		return errChanged
	}
	return <-failed
}

// WireSpec says what to count on a device.
type WireSpec struct {
	Device string        `json:"device"`
	Ends   [][2]string   `json:"ends"` // whose packets count as in clear, wherever in a frame they begin
	For    time.Duration `json:"for"`
}

// WireCount is what a device carried.
type WireCount struct {
	All   int   `json:"all"`   // IP packets
	Bytes int64 `json:"bytes"` // of them
	Clear int   `json:"clear"` // with the addresses of two ends, by themselves or in a tunnel
	Pairs int   `json:"pairs"` // of pairs' stretches
}

// RunWire counts the packets that come in and go out at a device.
func RunWire(ctx context.Context, s WireSpec) (n WireCount, err error) {
	dev, err := net.InterfaceByName(s.Device)
	if err != nil {
		return n, err
	}
	const all = 0x0003 // ETH_P_ALL
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return n, fmt.Errorf("open a packet socket: %w", err)
	}
	defer unix.Close(fd)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all<<8 | all>>8, Ifindex: dev.Index}); err != nil {
		return n, fmt.Errorf("listen on %s: %w", s.Device, err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
		return n, err
	}
	var ends [][]byte
	for _, e := range s.Ends {
		a, b := rawAddress(e[0]), rawAddress(e[1])
		ends = append(ends, append(bytes.Clone(a), b...), append(bytes.Clone(b), a...))
	}
	frame := make([]byte, 1<<16)
	for until := time.Now().Add(s.For); ctx.Err() == nil && time.Now().Before(until); {
		k, _, err := unix.Recvfrom(fd, frame, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return n, os.NewSyscallError("recvfrom", err)
		}
		n.add(frame[:k], ends)
	}
	return n, ctx.Err()
}

func rawAddress(s string) []byte {
	ip := net.ParseIP(s)
	if four := ip.To4(); four != nil {
		return four
	}
	return ip
}

// add counts a frame.
func (n *WireCount) add(frame []byte, ends [][]byte) {
	const ethernet, ipv4, udp = 14, 20, 17
	if len(frame) < ethernet+ipv4 {
		return
	}
	switch kind := uint16(frame[12])<<8 | uint16(frame[13]); kind {
	case 0x0800, 0x86dd:
	default:
		return
	}
	n.All++
	n.Bytes += int64(len(frame) - ethernet)
	if frame[23] == udp && len(frame) > ethernet+ipv4+4 {
		if port := uint16(frame[36])<<8 | uint16(frame[37]); port == onpath.StretchPort {
			n.Pairs++
		}
	}
	for _, e := range ends {
		if bytes.Contains(frame, e) {
			n.Clear++
			return
		}
	}
}

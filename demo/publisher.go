package demo

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
)

// RunFiles serves the files of a folder until ctx ends.
func RunFiles(ctx context.Context, dir, address string) error {
	s := &http.Server{Addr: address, Handler: http.FileServer(http.Dir(dir))}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return nil
}

// countedBytes is the size of one count of NetMonitor (functions/netmonitor).
const countedBytes = 56

// RunCollect prints what NetMonitor counted, a line for each pair of addresses, until ctx ends.
func RunCollect(ctx context.Context, address string, w io.Writer) error {
	c, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	b := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(b)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		for one := b[:n]; len(one) >= countedBytes; one = one[countedBytes:] {
			src, dst := netip.AddrFrom16([16]byte(one)).Unmap(), netip.AddrFrom16([16]byte(one[16:])).Unmap()
			fmt.Fprintf(w, "%s counts %s > %s: %d packets, hop limit %d\n", from, src, dst, binary.LittleEndian.Uint64(one[40:]), one[32])
		}
	}
}

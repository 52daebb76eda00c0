package publish

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"
)

// SIP follows the log of a SIP server: each line with Word has the address of a user behind it.
type SIP struct {
	*Daemon
	Log  string
	Word string
}

// followEvery is how often the log is looked at.
const followEvery = 50 * time.Millisecond

// Run follows the log until ctx ends, from its beginning; one that is put aside is read on.
func (s *SIP) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); s.Daemon.Run(ctx) }()
	defer func() { cancel(); <-done }()
	var f *os.File
	var r *bufio.Reader
	part := ""
	tick := every(followEvery)
	defer tick.Stop()
	for ; ctx.Err() == nil; await(ctx, tick) {
		if f == nil {
			var err error
			if f, err = os.Open(s.Log); errors.Is(err, os.ErrNotExist) {
				continue
			} else if err != nil {
				return err
			}
			r, part = bufio.NewReader(f), ""
		}
		for {
			text, err := r.ReadString('\n')
			part += text
			if err != nil && !errors.Is(err, io.EOF) {
				_ = f.Close()
				return err
			}
			if err != nil {
				break
			}
			s.line(part)
			part = ""
		}
		if replaced(f, s.Log) {
			_ = f.Close()
			f = nil
		}
	}
	if f != nil {
		_ = f.Close()
	}
	return nil
}

func await(ctx context.Context, tick *time.Ticker) {
	select {
	case <-ctx.Done():
	case <-tick.C:
	}
}

// line has the user of a line counted.
func (s *SIP) line(text string) {
	_, rest, ok := strings.Cut(text, s.Word)
	fields := strings.Fields(rest)
	if !ok || len(fields) == 0 {
		return
	}
	if a, err := netip.ParseAddr(strings.Trim(fields[0], "[],;")); err == nil {
		s.Request(a)
	}
}

// replaced reports whether the name is another file's, or the file was cut.
func replaced(f *os.File, name string) bool {
	here, err := f.Stat()
	there, other := os.Stat(name)
	if err != nil || other != nil {
		return err != nil
	}
	at, err := f.Seek(0, io.SeekCurrent)
	return !os.SameFile(here, there) || err == nil && there.Size() < at
}

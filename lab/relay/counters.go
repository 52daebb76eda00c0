package relay

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// CounterFile is a file that a relay writes its counters to, mapped into
// memory: they can be read at any time and outlive the relay. Behind them stand,
// for each direction, a further delay and when it ends, which others write.
type CounterFile struct {
	words []uint64
	n     int // directions
}

const wordsPerDelay = 2

const wordsPerDirection = int(unsafe.Sizeof(Counters{}) / 8)

// MapCounters makes the file for n links.
func MapCounters(path string, n int) (*CounterFile, error) {
	size := max(2*n*(wordsPerDirection+wordsPerDelay)*8, 8)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("relay: counters %s: %w", path, err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, fmt.Errorf("relay: counters %s: %w", path, err)
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("relay: counters %s: %w", path, err)
	}
	return &CounterFile{unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), size/8), 2 * n}, nil
}

// delay is the function that tells how much longer a frame of direction i takes
// that was sent at a time of the monotonic clock, ns.
func (f *CounterFile) delay(i int) func(sent int64) int64 {
	words := f.words[f.n*wordsPerDirection+i*wordsPerDelay:][:wordsPerDelay]
	return func(sent int64) int64 {
		if sent >= int64(atomic.LoadUint64(&words[1])) {
			return 0
		}
		return int64(atomic.LoadUint64(&words[0]))
	}
}

// WriteDelay makes both directions of link i, of n that a relay with this file
// carries, take longer by extra, for the time d.
func WriteDelay(path string, n, i int, extra, d time.Duration) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("relay: delay: %w", err)
	}
	defer f.Close()
	var b []byte
	for range 2 {
		b = binary.NativeEndian.AppendUint64(b, uint64(extra))
		b = binary.NativeEndian.AppendUint64(b, uint64(monotonic()+int64(d)))
	}
	if _, err := f.WriteAt(b, int64(2*n*wordsPerDirection+2*i*wordsPerDelay)*8); err != nil {
		return fmt.Errorf("relay: delay: %w", err)
	}
	return nil
}

// writer is the function that publishes the counters of direction i.
func (f *CounterFile) writer(i int) func(Counters) {
	words := f.words[i*wordsPerDirection:][:wordsPerDirection]
	return func(c Counters) {
		for j, v := range c.fields() {
			atomic.StoreUint64(&words[j], *v)
		}
	}
}

func (c *Counters) fields() []*uint64 {
	return []*uint64{&c.Packets, &c.Bytes, &c.Lost, &c.Full, &c.Missed, &c.Refused}
}

// ReadCounters reads what a relay of n links wrote: for each link the counters
// there and back.
func ReadCounters(path string, n int) ([][2]Counters, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("relay: counters: %w", err)
	}
	if len(b) < 2*n*wordsPerDirection*8 {
		return nil, fmt.Errorf("relay: counters %s: %d bytes are too few for %d links", path, len(b), n)
	}
	out := make([][2]Counters, n)
	for i := range 2 * n {
		for j, v := range out[i/2][i%2].fields() {
			*v = binary.NativeEndian.Uint64(b[(i*wordsPerDirection+j)*8:])
		}
	}
	return out, nil
}

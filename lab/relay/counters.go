package relay

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// CounterFile is a file that a relay writes its counters to, mapped into
// memory: they can be read at any time and outlive the relay.
type CounterFile struct{ words []uint64 }

const wordsPerDirection = int(unsafe.Sizeof(Counters{}) / 8)

// MapCounters makes the file for n links.
func MapCounters(path string, n int) (*CounterFile, error) {
	size := max(2*n*wordsPerDirection*8, 8)
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
	return &CounterFile{unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), size/8)}, nil
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

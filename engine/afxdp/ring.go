package afxdp

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring is one of the four, of which this process writes one index and the kernel the
// other. Entries between them are the reader's, all else is the writer's.
type ring struct {
	mapped   []byte
	producer *atomic.Uint32
	consumer *atomic.Uint32
	flags    *atomic.Uint32
	entries  unsafe.Pointer
	mask     uint32
	// own is the index that this process moves, known counts the other as last read.
	own, known uint32
}

func mapRing(fd int, offset int64, o unix.XDPRingOffset, frames, entry int) (ring, error) {
	m, err := unix.Mmap(fd, offset, int(o.Desc)+frames*entry, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return ring{}, fmt.Errorf("map ring at %#x: %w", offset, err)
	}
	base := unsafe.Pointer(&m[0])
	return ring{
		mapped:   m,
		producer: (*atomic.Uint32)(unsafe.Add(base, o.Producer)),
		consumer: (*atomic.Uint32)(unsafe.Add(base, o.Consumer)),
		flags:    (*atomic.Uint32)(unsafe.Add(base, o.Flags)),
		entries:  unsafe.Add(base, o.Desc),
		mask:     uint32(frames - 1),
	}, nil
}

// filled is how many entries of a ring that the kernel fills can be read, up to n.
func (r *ring) filled(n uint32) uint32 {
	if r.known-r.own < n {
		r.known = r.producer.Load()
	}
	return min(n, r.known-r.own)
}

// free is how many entries of a ring that the kernel empties can be written, up to n.
func (r *ring) free(n uint32) uint32 {
	if free := r.mask + 1 - (r.own - r.known); free < n {
		r.known = r.consumer.Load()
	}
	return min(n, r.mask+1-(r.own-r.known))
}

func (r *ring) desc(i uint32) *unix.XDPDesc {
	return (*unix.XDPDesc)(unsafe.Add(r.entries, uintptr(i&r.mask)*unsafe.Sizeof(unix.XDPDesc{})))
}

func (r *ring) addr(i uint32) *uint64 { return (*uint64)(unsafe.Add(r.entries, uintptr(i&r.mask)*8)) }

// Frame is a frame in a socket's memory: where it begins, in bytes, and its length.
type Frame struct {
	At     uint64
	Length uint32
}

// Socket is a mapped AF_XDP socket. It is for one goroutine at a time.
type Socket struct {
	fd                         int
	memory                     []byte
	fill, complete, rx, tx     ring
	free                       []uint64 // frames that nobody uses
	sending                    int      // frames that the kernel has not given back
	files                      *Files
	Received, Sent, SendFailed uint64
}

// Map maps an opened socket, whose files are then the Socket's.
func Map(f *Files) (_ *Socket, err error) {
	info, err := f.Memory.Stat()
	if err != nil {
		return nil, fmt.Errorf("map AF_XDP socket: %w", err)
	}
	s := &Socket{fd: int(f.Socket.Fd()), files: f}
	defer func() {
		if err != nil {
			s.unmap()
			err = fmt.Errorf("map AF_XDP socket: %w", err)
		}
	}()
	frames := int(info.Size() / FrameSize)
	if s.memory, err = unix.Mmap(int(f.Memory.Fd()), 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	var o unix.XDPMmapOffsets
	n := uint32(unsafe.Sizeof(o))
	if _, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), unix.SOL_XDP, unix.XDP_MMAP_OFFSETS,
		uintptr(unsafe.Pointer(&o)), uintptr(unsafe.Pointer(&n)), 0); e != 0 {
		return nil, fmt.Errorf("ask for the rings' places: %w", e)
	}
	const desc = int(unsafe.Sizeof(unix.XDPDesc{}))
	for _, r := range []struct {
		to     *ring
		offset int64
		places unix.XDPRingOffset
		entry  int
	}{
		{&s.fill, unix.XDP_UMEM_PGOFF_FILL_RING, o.Fr, 8}, {&s.complete, unix.XDP_UMEM_PGOFF_COMPLETION_RING, o.Cr, 8},
		{&s.rx, unix.XDP_PGOFF_RX_RING, o.Rx, desc}, {&s.tx, unix.XDP_PGOFF_TX_RING, o.Tx, desc},
	} {
		if *r.to, err = mapRing(s.fd, r.offset, r.places, frames, r.entry); err != nil {
			return nil, err
		}
	}
	for i := range frames {
		s.free = append(s.free, uint64(i)*FrameSize)
	}
	s.refill()
	return s, nil
}

// refill has seven of eight frames receive, at most: they are how long a busy machine may
// leave the process waiting. The others are for what is sent anew, also after a backlog,
// while those that came are not given back yet.
func (s *Socket) refill() {
	kept := (s.fill.mask + 1) / 8
	most := kept * 7
	n := s.fill.free(s.fill.mask + 1)
	waiting := s.fill.mask + 1 - n
	if waiting >= most || uint32(len(s.free)) <= kept {
		return
	}
	n = min(most-waiting, uint32(len(s.free))-kept)
	for range n {
		last := len(s.free) - 1
		*s.fill.addr(s.fill.own) = s.free[last]
		s.free = s.free[:last]
		s.fill.own++
	}
	s.fill.producer.Store(s.fill.own)
}

// Receive fills out with received frames, which are the caller's until he sends or
// releases each.
func (s *Socket) Receive(out []Frame) int {
	n := s.rx.filled(uint32(len(out)))
	size := uint64(len(s.memory))
	took := 0
	for i := range n {
		d := s.rx.desc(s.rx.own + i)
		if d.Addr >= size || uint64(d.Len) > size-d.Addr {
			continue // the kernel does not do this
		}
		out[took] = Frame{At: d.Addr, Length: d.Len}
		took++
	}
	s.rx.own += n
	s.rx.consumer.Store(s.rx.own)
	s.Received += uint64(took)
	s.refill()
	return took
}

// Missed is how many frames came while none was free, or the ring full.
func (s *Socket) Missed() uint64 {
	var st unix.XDPStatistics
	n := uint32(unsafe.Sizeof(st))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), unix.SOL_XDP, unix.XDP_STATISTICS,
		uintptr(unsafe.Pointer(&st)), uintptr(unsafe.Pointer(&n)), 0)
	if e != 0 {
		return 0
	}
	return st.Rx_dropped + st.Rx_ring_full
}

// Bytes are a frame's.
func (s *Socket) Bytes(f Frame) []byte { return s.memory[f.At : f.At+uint64(f.Length)] }

// Buffer is a frame's bytes and what it may grow by.
func (s *Socket) Buffer(f Frame) []byte {
	return s.memory[f.At : f.At-f.At%FrameSize+FrameSize]
}

// New gives an unused frame, if there is one.
func (s *Socket) New() (Frame, bool) {
	s.reclaim()
	if len(s.free) <= 1 { // the last ones receive
		return Frame{}, false
	}
	last := len(s.free) - 1
	at := s.free[last]
	s.free = s.free[:last]
	return Frame{At: at, Length: MaxFrame}, true
}

// Release gives a frame back unsent.
func (s *Socket) Release(f Frame) { s.free = append(s.free, f.At-f.At%FrameSize) }

// Send queues a frame; Flush has the kernel take what is queued. It reports false,
// and releases the frame, when the ring is full.
func (s *Socket) Send(f Frame) bool {
	if s.tx.free(1) == 0 {
		s.SendFailed++
		s.Release(f)
		return false
	}
	*s.tx.desc(s.tx.own) = unix.XDPDesc{Addr: f.At, Len: f.Length}
	s.tx.own++
	s.sending++
	s.Sent++
	return true
}

// flushes is how often the kernel is asked to take what is queued before the caller
// goes on: it takes some tens of frames at a time.
const flushes = 256

// Flush has the kernel send what is queued and takes back the frames that it has sent.
func (s *Socket) Flush() error {
	s.tx.producer.Store(s.tx.own)
	for range flushes {
		if s.tx.consumer.Load() == s.tx.own {
			break
		}
		if err := kick(s.fd); errors.Is(err, unix.ENXIO) { // the device is gone; all else is for a moment
			return fmt.Errorf("send by AF_XDP: %w", err)
		}
		s.reclaim()
	}
	s.reclaim()
	s.refill()
	return nil
}

func kick(fd int) unix.Errno {
	_, _, e := unix.Syscall6(unix.SYS_SENDTO, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return e
}

func (s *Socket) reclaim() {
	n := s.complete.filled(s.complete.mask + 1)
	for i := range n {
		at := *s.complete.addr(s.complete.own + i)
		s.free = append(s.free, at-at%FrameSize)
	}
	s.complete.own += n
	s.complete.consumer.Store(s.complete.own)
	s.sending -= int(n)
}

// Fd is for poll(2): it is readable when frames have come.
func (s *Socket) Fd() int { return s.fd }

func (s *Socket) unmap() {
	for _, r := range []*ring{&s.fill, &s.complete, &s.rx, &s.tx} {
		if r.mapped != nil {
			_ = unix.Munmap(r.mapped)
		}
	}
	if s.memory != nil {
		_ = unix.Munmap(s.memory)
	}
}

// Close unmaps the socket and closes its files.
func (s *Socket) Close() error {
	s.unmap()
	return s.files.Close()
}

package wanopt

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/restic/chunker"
)

// counted counts what is written to a connection.
type counted struct {
	net.Conn
	n *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// tcpPair are the two ends of a connection.
func tcpPair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// transfer sends data through two ends and back, and gives how many bytes went there.
func transfer(t *testing.T, near, far *end, data []byte) int64 {
	t.Helper()
	client, taken := tcpPair(t)
	opened, server := tcpPair(t)
	a, b := tcpPair(t)
	var there atomic.Int64
	done := make(chan error, 2)
	go func() { done <- near.join(taken, counted{a, &there}) }()
	go func() { done <- far.join(opened, b) }()
	go func() {
		got, _ := io.ReadAll(server)
		_, _ = server.Write(got)
		_ = server.CloseWrite()
	}()
	go func() {
		_, _ = client.Write(data)
		_ = client.CloseWrite()
	}()
	_ = client.SetDeadline(time.Now().Add(time.Minute))
	back, err := io.ReadAll(client)
	if err != nil || !bytes.Equal(back, data) {
		t.Fatalf("%d of %d bytes came back, or others (%v)", len(back), len(data), err)
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	return there.Load()
}

func random(n int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	b := make([]byte, n)
	_, _ = r.Read(b)
	return b
}

// text is what people write: words, of which some are frequent.
func text(n int) []byte {
	var b bytes.Buffer
	r := rand.New(rand.NewPCG(1, 2))
	for b.Len() < n {
		fmt.Fprintf(&b, "line %d: the quick %x jumps over %x and takes %d steps\n", r.IntN(1000), r.IntN(4096), r.IntN(4096), r.IntN(100))
	}
	return b.Bytes()[:n]
}

// TestSecondTransferIsSmall: of 10 MB sent again at most 5 % cross, also where a part was
// inserted; of text at most half crosses the first time. Every byte is right.
func TestSecondTransferIsSmall(t *testing.T) {
	near, far := &end{store: newStore(64 << 20)}, &end{store: newStore(64 << 20)}
	data := random(10 << 20)
	if n := transfer(t, near, far, data); n < 10<<20 {
		t.Errorf("%d bytes of random data crossed", n)
	}
	if n := transfer(t, near, far, data); n > 10<<20/20 {
		t.Errorf("the second time %d bytes crossed", n)
	}
	shifted := append([]byte("something new before it"), data...)
	if n := transfer(t, near, far, shifted); n > 10<<20/20 {
		t.Errorf("with a new beginning %d bytes crossed", n)
	}
	words := text(4 << 20)
	if n := transfer(t, near, far, words); n > int64(len(words))/2 {
		t.Errorf("of %d bytes of text %d crossed", len(words), n)
	}
	for _, small := range [][]byte{nil, []byte("x")} {
		transfer(t, near, far, small)
	}
}

// TestLostChunksAreSentAgain: a partner that has lost its store is sent what it lacks.
func TestLostChunksAreSentAgain(t *testing.T) {
	near, far := &end{store: newStore(64 << 20)}, &end{store: newStore(64 << 20)}
	data := random(3 << 20)
	transfer(t, near, far, data)
	far.store = newStore(64 << 20)
	if n := transfer(t, near, far, data); n < 3<<20 {
		t.Errorf("%d bytes crossed, and the other end had nothing", n)
	}
	if n := transfer(t, near, far, data); n > 3<<20/20 {
		t.Errorf("%d bytes crossed, and the other end had all", n)
	}
}

// TestStoreIsBounded: the least recently used chunks make room.
func TestStoreIsBounded(t *testing.T) {
	s := newStore(100)
	for i := range 20 {
		b := bytes.Repeat([]byte{byte(i)}, 10)
		s.put(idOf(b), b)
	}
	if s.bytes > 100 || s.get(idOf(bytes.Repeat([]byte{19}, 10))) == nil || s.get(idOf(make([]byte, 10))) != nil {
		t.Errorf("%d bytes are kept", s.bytes)
	}
}

// TestEndsProveTheSecret: who does not know it is refused, and a partner with another store
// is met anew.
func TestEndsProveTheSecret(t *testing.T) {
	near, far := &end{store: newStore(1000), epoch: id{1}}, &end{store: newStore(1000), epoch: id{2}}
	far.store.put(id{9}, []byte("from before"))
	for _, secret := range []string{"right", "wrong"} {
		a, b := tcpPair(t)
		got := make(chan error, 1)
		go func() {
			_, err := far.hear(b, "right")
			b.Close()
			got <- err
		}()
		err := near.ask(a, secret, wish{})
		if herr := <-got; (secret == "right") != (err == nil && herr == nil) {
			t.Errorf("secret %s: %v, %v", secret, err, herr)
		}
	}
	if near.store.epoch != far.epoch || far.store.epoch != near.epoch || far.store.get(id{9}) != nil {
		t.Error("the stores did not meet")
	}
}

// TestBothLack: while both directions are full, and each end lacks what the other names, both
// go on.
func TestBothLack(t *testing.T) {
	near, far := &end{store: newStore(64 << 20)}, &end{store: newStore(64 << 20)}
	data := random(12 << 20)
	transfer(t, near, far, data)
	there, back := data[:6<<20], data[6<<20:]
	lose := func(e *end, lost []byte) { // what it is about to be sent
		e.store = newStore(64 << 20)
		kept := there
		if &lost[0] == &there[0] {
			kept = back
		}
		cut := chunker.NewWithBoundaries(bytes.NewReader(kept), polynomial, leastChunk, mostChunk)
		cut.SetAverageBits(meanBits)
		for {
			c, err := cut.Next(make([]byte, mostChunk))
			if err != nil {
				return
			}
			e.store.put(idOf(c.Data), c.Data)
		}
	}
	lose(near, back)
	lose(far, there)
	client, taken := tcpPair(t)
	opened, server := tcpPair(t)
	a, b := tcpPair(t)
	for _, c := range []*net.TCPConn{a, b} {
		_ = c.SetReadBuffer(128 << 10)
		_ = c.SetWriteBuffer(128 << 10)
	}
	go func() { _ = near.join(taken, a) }()
	go func() { _ = far.join(opened, b) }()
	come := make(chan bool, 2)
	for c, d := range map[*net.TCPConn][2][]byte{client: {there, back}, server: {back, there}} {
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		go func() { _, _ = c.Write(d[0]); _ = c.CloseWrite() }()
		go func() { got, err := io.ReadAll(c); come <- err == nil && bytes.Equal(got, d[1]) }()
	}
	if x, y := <-come, <-come; !x || !y {
		t.Error("the ends wait for each other")
	}
}

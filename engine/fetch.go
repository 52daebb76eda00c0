package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"time"

	"github.com/tetratelabs/wazero/api"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine/blob"
	"github.com/onpath/onpath/engine/control"
)

// Bounds of fetch/1 for one module.
const (
	maxFetches  = 64       // at a time
	fetchRate   = 64       // begun a second
	comesRate   = 32 << 20 // bytes a second, of all bodies together
	maxURL      = 2 << 10
	maxHeader   = 8 << 10
	headTime    = 15 * time.Second // until the header is there
	pieceTime   = time.Minute      // until more comes, or the module asks for it
	maxWord     = 1 << 10          // of a reason
	maxKeepOpen = 4                // connections to one host that wait
)

// withheld are the lines of a header that are not a module's to write.
var withheld = []string{"Connection", "Content-Length", "Host", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// newFetcher connects by what the agent dials: the engine itself may not.
func newFetcher(s *supply) *http.Client {
	t := &http.Transport{
		DisableCompression: true, ResponseHeaderTimeout: headTime, MaxResponseHeaderBytes: 32 << 10,
		MaxIdleConnsPerHost: maxKeepOpen, IdleConnTimeout: headTime, ReadBufferSize: 16 << 10,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, headTime)
			defer cancel()
			return s.ask(ctx, control.Want{Dial: address})
		},
	}
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// fetch is one that goes on.
type fetch struct {
	h    *host
	id   int32
	ctx  context.Context
	stop context.CancelFunc
	pieces
	into chan *blob.Writer // what the rest becomes
}

func (f *fetch) cancel() { f.stop() }

// mayFetch says whether a URL is at a host that the module's function names.
func (h *host) mayFetch(u *url.URL) bool {
	host, ok := onpath.FetchHost(u.Host)
	return ok && u.Scheme == "http" && u.User == nil && h.m.spec.MayFetch(host)
}

func (h *host) fetchGet(mem api.Memory, s []uint64) {
	address, ok := window(mem, s[0], s[1], maxURL)
	header, ok2 := window(mem, s[2], s[3], maxHeader)
	if !ok || !ok2 {
		s[0] = result(tooLarge)
		return
	}
	u, err := url.Parse(string(address))
	lines, err2 := headerOf(header)
	if err != nil || err2 != nil || !h.mayFetch(u) {
		s[0] = result(absent)
		return
	}
	open := 0
	for _, o := range h.streams.open {
		if _, is := o.(*fetch); is {
			open++
		}
	}
	if open >= maxFetches || !h.fetches.take(1, now()) {
		s[0] = result(refused)
		return
	}
	f := &fetch{h: h, id: h.streams.number(), pieces: newPieces(), into: make(chan *blob.Writer, 1)}
	f.ctx, f.stop = context.WithCancel(h.streams.ctx)
	h.streams.open[f.id] = f
	go f.run(u, lines)
	s[0] = result(f.id)
}

// headerOf reads lines "Name: value".
func headerOf(b []byte) (http.Header, error) {
	text := strings.TrimSpace(string(b))
	if text == "" {
		return http.Header{}, nil
	}
	h, err := textproto.NewReader(bufio.NewReader(strings.NewReader(text + "\r\n\r\n"))).ReadMIMEHeader()
	for _, name := range withheld {
		h.Del(name)
	}
	return http.Header(h), err
}

// headerText is the inverse of headerOf, in the order of names.
func headerText(h http.Header) []byte {
	var b strings.Builder
	_ = h.Write(&b)
	return []byte(strings.ReplaceAll(b.String(), "\r\n", "\n"))
}

func (f *fetch) run(u *url.URL, header http.Header) {
	defer f.stop()
	if err := f.get(u, header); err != nil {
		words := err.Error()
		failed := event{kind: isFailed, data: []byte(words[:min(len(words), maxWord)]), last: true}
		var refused *control.RefusedError
		if errors.As(err, &refused) {
			failed.refused = u.Host
		}
		_ = f.h.tell(f.h.streams.ctx, f.id, failed)
	}
	select {
	case w := <-f.into: // the stream was over before that
		w.Drop()
	default:
	}
}

var errUnread = errors.New("the module did not read it for a minute")

func (f *fetch) get(u *url.URL, header http.Header) error {
	req := (&http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Header: header, ProtoMajor: 1, ProtoMinor: 1}).WithContext(f.ctx)
	if header.Get("User-Agent") == "" {
		header.Set("User-Agent", "onpath")
	}
	resp, err := f.h.e.fetcher.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.ContentLength >= 0 {
		resp.Header.Set("Content-Length", fmt.Sprint(resp.ContentLength))
	}
	if err := f.h.tell(f.ctx, f.id, event{kind: isHead, status: uint32(resp.StatusCode), data: headerText(resp.Header)}); err != nil {
		return err
	}
	body := &prompt{r: resp.Body, f: f}
	b := make([]byte, f.h.piece())
	for {
		timer := newTimer(pieceTime)
		select {
		case w := <-f.into:
			timer.Stop()
			return f.store(body, w)
		case <-f.next:
			timer.Stop()
		case <-timer.C:
			return errUnread
		case <-f.ctx.Done():
			timer.Stop()
			return f.ctx.Err()
		}
		n, err := body.Read(b)
		if n > 0 {
			if terr := f.h.tell(f.ctx, f.id, event{kind: isPiece, data: b[:n]}); terr != nil {
				return terr
			}
			if err == io.EOF {
				f.goOn() // the end is told without being asked for
			}
		}
		switch {
		case err == io.EOF:
			return f.h.tell(f.ctx, f.id, event{kind: isEnd, last: true})
		case err != nil:
			return err
		case n == 0:
			f.goOn()
		}
	}
}

// prompt is a body of which a piece comes in time, or no more, and as fast as all bodies of a
// module may come together.
type prompt struct {
	r io.Reader
	f *fetch
}

func (p *prompt) Read(b []byte) (int, error) {
	t := afterFunc(pieceTime, p.f.stop)
	defer t.Stop()
	n, err := p.r.Read(b)
	if n > 0 {
		if werr := p.f.h.comes.wait(p.f.ctx, n); werr != nil {
			return 0, werr
		}
	}
	return n, err
}

// store writes the rest of a body into a blob: the module sees nothing of it until the end.
func (f *fetch) store(body io.Reader, w *blob.Writer) error {
	if _, err := io.CopyBuffer(writerFunc(w.Write), body, make([]byte, maxPiece)); err != nil {
		w.Drop()
		return err
	}
	if err := w.Whole(); err != nil {
		return err
	}
	return f.h.tell(f.ctx, f.id, event{kind: isEnd, last: true})
}

// writerFunc hides what else a writer can do, so that a copy uses the buffer that it is given.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func (h *host) fetchStore(mem api.Memory, s []uint64) {
	f, is := h.streams.open[int32(u(s[0]))].(*fetch)
	if !is {
		s[0] = result(absent)
		return
	}
	w, no := h.createBlob(mem, s[1:])
	if no != 0 {
		s[0] = result(no)
		return
	}
	select {
	case f.into <- w:
		s[0] = 0
	default:
		w.Drop()
		s[0] = result(refused)
	}
}

func (h *host) streamRead(_ api.Memory, s []uint64) {
	o := h.streams.open[int32(u(s[0]))]
	switch {
	case o == nil:
		s[0] = result(absent)
	case !o.want():
		s[0] = result(refused)
	default:
		s[0] = 0
	}
}

func (h *host) streamCancel(_ api.Memory, s []uint64) {
	id := int32(u(s[0]))
	o := h.streams.open[id]
	if o == nil {
		s[0] = result(absent)
		return
	}
	delete(h.streams.open, id)
	o.cancel()
	s[0] = 0
}

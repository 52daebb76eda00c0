package leases

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine"
	"github.com/onpath/onpath/internal/outdial"
	"github.com/onpath/onpath/signal/nslp"
)

// fetchPatience is how long a publisher's server may take, all in all.
const fetchPatience = 4 * time.Second

// bring fetches what a request names: the module, if it is not here, and what proves the
// addresses of a publisher without an account.
func (f *fetcher) bring(ctx context.Context, m *nslp.Message, o *onpath.LocalLease) *nslp.Refusal {
	ctx, cancel := context.WithTimeout(ctx, f.patience)
	defer cancel()
	if !o.Known {
		for _, p := range o.To {
			if r := f.prove(ctx, p.Addr(), m.Password); r != nil {
				return r
			}
		}
	}
	if len(o.Code) > 0 {
		return nil
	}
	code, err := f.get(ctx, m.URL, onpath.MaxModuleBytes)
	switch {
	case errors.Is(err, errTooLarge):
		return &nslp.Refusal{Reason: "ModuleTooLarge", Words: fmt.Sprintf("the module has more than %d bytes", onpath.MaxModuleBytes)}
	case ctx.Err() != nil:
		return &nslp.Refusal{Reason: "ModuleTooSlow", Words: fmt.Sprintf("the module did not come within %s", f.patience)}
	case err != nil:
		return &nslp.Refusal{Reason: "NoModule", Words: "the module cannot be fetched: " + err.Error()}
	case hex.EncodeToString(nslp.HashOf(code)) != o.SHA256:
		return &nslp.Refusal{Reason: "WrongHash", Words: "the module that the URL gives has another hash"}
	}
	module, err := engine.Check(ctx, code)
	if err != nil {
		return &nslp.Refusal{Reason: "BadModule", Words: "the module cannot run: " + err.Error()}
	}
	for _, i := range module.Imports {
		if !slices.Contains(f.blocks, i.Module) {
			return &nslp.Refusal{Reason: "MissingBlock",
				Words: fmt.Sprintf("the building block %s is not offered to leased modules here", i.Module)}
		}
	}
	o.Code = code
	return nil
}

// fetcher fetches from publishers' servers, from the network of the node's uplinks.
type fetcher struct {
	client   *http.Client
	patience time.Duration
	blocks   []string // that modules may import
}

var (
	errTooLarge = errors.New("too large")
	errRedirect = errors.New("redirects are not followed")
)

// fetcher makes one that connects to public addresses, and to what the operator allows,
// but never to the machine itself.
func (l *Leases) fetcher() *fetcher {
	own := l.machine.Current().Addresses
	d := outdial.Dialer{NetNS: l.part.NetNS, Allowed: l.opt.ModuleSources, Setting: "node.moduleSources",
		Own: func() []netip.Addr { return own }}
	t := &http.Transport{DisableKeepAlives: true, DialContext: d.DialContext}
	client := &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error {
		return errRedirect
	}}
	return &fetcher{client, fetchPatience, l.opt.Blocks}
}

// get fetches at most so many bytes.
func (f *fetcher) get(ctx context.Context, from string, most int64) ([]byte, error) {
	u, err := url.Parse(from)
	if err != nil || u.User != nil {
		return nil, fmt.Errorf("%q is no URL to fetch from", from)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answers %s", resp.Status)
	}
	var b bytes.Buffer
	n, err := io.Copy(&b, io.LimitReader(resp.Body, most+1))
	if n > most {
		return nil, errTooLarge
	}
	return b.Bytes(), err
}

// prove compares the password that a server has with the request's.
func (f *fetcher) prove(ctx context.Context, a netip.Addr, password string) *nslp.Refusal {
	shown, err := f.shows(ctx, a, password)
	if err != nil {
		return &nslp.Refusal{Reason: "WrongPassword", Words: fmt.Sprintf("%s does not prove itself: %v", a, err)}
	}
	if shown {
		return nil
	}
	words := fmt.Sprintf("what %s has at %s is not the request's password", a, onpath.ClaimPath)
	return &nslp.Refusal{Reason: "WrongPassword", Words: words}
}

// passwordBytes is how much of what an address shows is read.
const passwordBytes = 1 << 10

// shows reports whether an address shows a password (NetServ §3.2).
func (f *fetcher) shows(ctx context.Context, a netip.Addr, password string) (bool, error) {
	b, err := f.get(ctx, (&url.URL{Scheme: "http", Host: hostOf(a), Path: onpath.ClaimPath}).String(), passwordBytes)
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(b)) {
		if strings.TrimSpace(line) == password {
			return true, nil
		}
	}
	return false, nil
}

func hostOf(a netip.Addr) string {
	if a.Is6() {
		return "[" + a.String() + "]"
	}
	return a.String()
}

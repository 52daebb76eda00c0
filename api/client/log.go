package client

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// mostLog is the largest answer of a log, in bytes: 256 entries.
const mostLog = 256 * (1<<16 + 2)

// LogFile reads what the public log has at a path: checkpoint, key, tile/….
func (c *Client) LogFile(ctx context.Context, path string) ([]byte, error) {
	answer, err := c.send(ctx, http.MethodGet, "/log/"+path, nil, nil)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return io.ReadAll(io.LimitReader(answer.Body, mostLog))
}

// PublicLog reads the public log of a server at a URL, without any credential. The server's
// certificate counts for nothing: what is read is believed by the log's signature alone.
func PublicLog(base string) func(ctx context.Context, path string) ([]byte, error) {
	c := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}}}
	return func(ctx context.Context, path string) ([]byte, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(base, "/")+"/log/"+path, nil)
		if err != nil {
			return nil, onpath.Errorf(onpath.CodeInvalid, "%q is no URL: %w", base, err)
		}
		answer, err := c.Do(r)
		if err != nil {
			return nil, onpath.Errorf(onpath.CodeUnavailable, "no log answers at %s: %w", base, reason(err))
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return nil, problem(answer)
		}
		return io.ReadAll(io.LimitReader(answer.Body, mostLog))
	}
}

// Audit calls yield for the last entries of the log in clear, the latest last.
func (c *Client) Audit(ctx context.Context, tenant string, limit int, yield func(onpath.LoggedEntry) error) error {
	q := url.Values{"tenant": {tenant}, "limit": {strconv.Itoa(limit)}}
	r, w := io.Pipe()
	go func() { w.CloseWithError(c.copy(ctx, "/v1/audit", q, w)) }()
	defer r.Close()
	d := json.NewDecoder(r)
	for {
		var e onpath.LoggedEntry
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := yield(e); err != nil {
			return err
		}
	}
}

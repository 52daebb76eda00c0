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
	return readLog(ctx, c.URL(), path, c.ask)
}

// logPatience is how long who reads the log waits while its server says that it is asked too
// often.
const logPatience = time.Minute

func readLog(ctx context.Context, base, path string, ask func(*http.Request) (*http.Response, error)) ([]byte, error) {
	for end := time.Now().Add(logPatience); ; {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(base, "/")+"/log/"+path, nil)
		if err != nil {
			return nil, onpath.Errorf(onpath.CodeInvalid, "%q is no URL: %w", base, err)
		}
		answer, err := ask(r)
		if err != nil {
			return nil, err
		}
		b, err := logPart(answer)
		if answer.Header.Get("Retry-After") == "" || time.Now().After(end) {
			return b, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

func logPart(answer *http.Response) ([]byte, error) {
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, problem(answer)
	}
	return io.ReadAll(io.LimitReader(answer.Body, mostLog))
}

// PublicLog reads the public log of a server at a URL, without any credential. The server's
// certificate counts for nothing: what is read is believed by the log's signature alone.
func PublicLog(base string) func(ctx context.Context, path string) ([]byte, error) {
	c := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}}}
	return func(ctx context.Context, path string) ([]byte, error) {
		return readLog(ctx, base, path, func(r *http.Request) (*http.Response, error) {
			answer, err := c.Do(r)
			if err != nil {
				return nil, onpath.Errorf(onpath.CodeUnavailable, "no log answers at %s: %w", base, reason(err))
			}
			return answer, nil
		})
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

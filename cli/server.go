package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api"
	"github.com/onpath/onpath/cli/config"
	"github.com/onpath/onpath/control/translog"
	"github.com/onpath/onpath/store/etcd"
)

// serverFlags override the file's server part.
type serverFlags struct {
	path string
	set  config.Server
	etcd string
}

func (f *serverFlags) add(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.path, "config", "", "configuration file (default "+config.DefaultPath+", if it is there)")
	fl.StringVar(&f.set.Socket, "socket", "", "unix socket for this machine (default "+config.DefaultSocket+")")
	fl.StringVar(&f.set.Listen, "listen", "", "address:port for other machines, by TLS (default none)")
	fl.StringVar(&f.set.Address, "address", "", "host:port at which others reach --listen (default its own)")
	fl.StringVar(&f.etcd, "etcd", "", "endpoints of an external etcd, comma-separated (default an embedded one)")
}

// config is the file's, with flags over it.
func (f *serverFlags) config() (*config.Config, error) {
	c, err := config.Load(f.path)
	if err != nil {
		return nil, err
	}
	override(&c.Server.StateDir, f.set.StateDir)
	override(&c.Server.Socket, f.set.Socket)
	override(&c.Server.Listen, f.set.Listen)
	override(&c.Server.Address, f.set.Address)
	override(&c.Server.Metrics, f.set.Metrics)
	override(&c.Server.DNS.Listen, f.set.DNS.Listen)
	override(&c.Server.Log, f.set.Log)
	if f.etcd != "" {
		c.Server.Etcd.Endpoints = strings.Split(f.etcd, ",")
	}
	return c, c.Server.Complete()
}

func override[T ~string](s *T, by string) {
	if by != "" {
		*s = T(by)
	}
}

func newServer(*global) *cobra.Command {
	f := &serverFlags{}
	c := &cobra.Command{
		Use: "server", Short: "Run the server: it keeps objects, plans, and talks to nodes", GroupID: groupRun,
		Long: `Run the server: it keeps objects (in an embedded etcd, or an external one), plans,
and talks to nodes. Without --listen only this machine reaches it, through a unix
socket. Traffic does not need it: it may stop and start at any time.

Of several servers on one external etcd one works, the others wait until it is
gone, at most 10 s after it died.`,
		Example: examples("sudo onpath server", "sudo onpath server --listen '[::]:7443'",
			"sudo onpath server --config /etc/onpath/onpath.yaml"),
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			conf, err := f.config()
			if err != nil {
				return err
			}
			log := newLog(conf.Server.Log).With("role", "server")
			return needsSudo(c, serve(c.Context(), &conf.Server, log, func() {}))
		},
	}
	f.add(c)
	c.Flags().StringVar(&f.set.StateDir, "state-dir", "", "where store, keys and images are kept (default "+config.DefaultServerDir+")")
	c.Flags().StringVar(&f.set.Metrics, "metrics", "", "address:port for Prometheus, plain HTTP (default none)")
	c.Flags().StringVar(&f.set.DNS.Listen, "dns", "", "address:port for DNS of services (default none)")
	c.Flags().StringVar(&f.set.Log, "log", "", "debug, info, warn or error (default info)")
	return c
}

// newLog writes structured lines to standard error.
func newLog(level string) *slog.Logger {
	var l slog.Level
	_ = l.UnmarshalText([]byte(level)) // checked with the configuration
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l}))
}

// serve runs the server until ctx ends. It calls begun once all that may be refused,
// a port above all, is to be had.
func serve(ctx context.Context, conf *config.Server, log *slog.Logger, begun func()) error {
	if err := checkSocket(conf); err != nil {
		return err
	}
	o := &opened{conf: conf, log: log}
	defer o.close()
	if err := o.open(ctx); err != nil {
		return err
	}
	tasks, err := o.tasks(ctx)
	if err != nil {
		return err
	}
	begun()
	tellReady(log, "serves on "+strings.TrimSuffix(conf.Socket+" and "+conf.Listen, " and "))
	return together(ctx, tasks...)
}

// sinceBoot is how long ago the machine started, suspended or not.
func sinceBoot() time.Duration {
	var at unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &at) // Linux has it
	return time.Duration(at.Nano())
}

// openLog opens the public log, and the store that writes its entries.
func openLog(ctx context.Context, conf *config.Server, s *etcd.Store, secret []byte, log *slog.Logger) (translog.Public, error) {
	entries, err := translog.NewStore(ctx, s, time.Now, secret)
	if err != nil {
		return translog.Public{}, err
	}
	l, err := translog.Open(filepath.Join(conf.StateDir, "log"))
	if err == nil {
		log.Debug("the public log is open", "key", l.Key())
	}
	return translog.Public{Log: l, Entries: entries}, err
}

// tellReady tells systemd, if that started this process, that start-up is over:
// whoever connects from now on is answered.
func tellReady(log *slog.Logger, status string) {
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady+"\nSTATUS="+status); err != nil {
		log.Warn("systemd is not told that the server is up", "error", err)
	}
}

// ports are a server's TCP listeners; nil where none is asked for.
type ports struct {
	api, metrics, dns net.Listener
	udp               net.PacketConn
}

func (p *ports) open(conf *config.Server) (err error) {
	if conf.Listen != "" {
		if p.api, err = listen("server.listen", conf.Listen); err != nil {
			return err
		}
	}
	if conf.Metrics != "" {
		if p.metrics, err = listen("server.metrics", conf.Metrics); err != nil {
			return err
		}
	}
	if conf.DNS.Listen == "" {
		return nil
	}
	if p.dns, err = listen("server.dns.listen", conf.DNS.Listen); err != nil {
		return err
	}
	at := p.dns.Addr().String() // by which a port 0 is known
	if p.udp, err = net.ListenPacket("udp", at); err != nil {
		return notHeard("server.dns.listen", at, err)
	}
	return nil
}

func (p *ports) close() {
	for _, l := range []net.Listener{p.api, p.metrics, p.dns} {
		if l != nil {
			_ = l.Close()
		}
	}
	if p.udp != nil {
		_ = p.udp.Close()
	}
}

// listen opens the TCP listener that a key of the configuration asks for.
func listen(key, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err == nil {
		return l, nil
	}
	return nil, notHeard(key, address, err)
}

// notHeard says why a program cannot listen at an address.
func notHeard(key, address string, err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = errno
	}
	e := onpath.Errorf(onpath.CodeUnavailable, "%s: %s: %w", key, address, err)
	switch errno {
	case syscall.EADDRINUSE:
		e.Remedy = "another program listens there (ss -lntup shows which): stop it, or choose another port"
	case syscall.EADDRNOTAVAIL:
		e.Remedy = "write an address that this machine has (ip addr shows them), or [::] for all"
	case syscall.EACCES:
		e.Remedy = "ports below 1024 are root's: choose another one, or run as root"
	}
	return e
}

// checkSocket refuses a server whose socket is not to be had, before it makes anything.
func checkSocket(conf *config.Server) error {
	err := api.CheckSocket(conf.Socket)
	switch {
	case errors.Is(err, fs.ErrNotExist) && within(conf.StateDir, filepath.Dir(conf.Socket)):
		return nil // it comes with the state directory
	case onpath.CodeOf(err) == onpath.CodeExists && len(conf.Etcd.Endpoints) > 0:
		return nil // a server that waits for its turn may take over the socket, too
	}
	return err
}

// within tells whether path is dir or below it.
func within(path, dir string) bool {
	r, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(r)
}

// lead waits until no other server on the same external cluster plans. The task
// that it returns ends the server when that may change. With an embedded store
// there is no other.
func lead(ctx context.Context, conf *config.Server, store *etcd.Store, log *slog.Logger) (lost func(context.Context) error,
	resign func(), err error) {
	if len(conf.Etcd.Endpoints) == 0 {
		return func(context.Context) error { return nil }, func() {}, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return nil, nil, fmt.Errorf("this machine's name: %w", err)
	}
	if who, err := store.Leader(ctx); err != nil {
		return nil, nil, err
	} else if who != "" {
		log.Info("another server leads; this one waits until it is gone", "leader", who)
		tellReady(log, "waits until the server on "+who+" is gone") // or its start would last for as long
	}
	l, err := store.Lead(ctx, name, 0)
	if err != nil {
		return nil, nil, err
	}
	log.Info("this server leads", "name", name)
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-l.Lost():
			e := onpath.Errorf(onpath.CodeUnavailable, "the lead was lost: the etcd cluster was not reached for %s", etcd.LeaderTTL)
			e.Remedy = "look after the cluster; start the server again, and it waits for its turn"
			return e
		}
	}, l.Resign, nil
}

func openStore(ctx context.Context, conf *config.Server, log *slog.Logger) (*etcd.Store, error) {
	o := etcd.Options{Logger: log}
	if len(conf.Etcd.Endpoints) == 0 {
		o.Dir = filepath.Join(conf.StateDir, "store")
		return etcd.Open(ctx, o)
	}
	o.Endpoints = conf.Etcd.Endpoints
	if conf.Etcd.CA != "" || conf.Etcd.Cert != "" {
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if conf.Etcd.CA != "" {
		pem, err := os.ReadFile(conf.Etcd.CA)
		if err != nil {
			return nil, onpath.Errorf(onpath.CodeInvalid, "server.etcd.ca: %w", err)
		}
		o.TLS.RootCAs = x509.NewCertPool()
		if !o.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return nil, onpath.Errorf(onpath.CodeInvalid, "server.etcd.ca: %s holds no certificate", conf.Etcd.CA)
		}
	}
	if conf.Etcd.Cert != "" {
		pair, err := tls.LoadX509KeyPair(conf.Etcd.Cert, conf.Etcd.Key)
		if err != nil {
			return nil, onpath.Errorf(onpath.CodeInvalid, "server.etcd.cert: %w", err)
		}
		o.TLS.Certificates = []tls.Certificate{pair}
	}
	return etcd.Open(ctx, o)
}

func plain(list []onpath.Prefix) (out []netip.Prefix) {
	for _, p := range list {
		out = append(out, p.Prefix)
	}
	return out
}

func closing(log *slog.Logger, what string, do func() error) {
	if err := do(); err != nil {
		log.Warn("not closed well", "what", what, "error", err)
	}
}

// together runs tasks until ctx ends or one of them ends with an error, which
// ends the others.
func together(ctx context.Context, tasks ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, t := range tasks {
		wg.Go(func() {
			if err := t(ctx); err != nil && !errors.Is(err, context.Canceled) {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// newRegistry has the metrics of the process itself.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// metricsTask serves /metrics and /healthz on a plain listener.
func metricsTask(l net.Listener, r *prometheus.Registry, health func() error) func(context.Context) error {
	return func(ctx context.Context) error {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
		mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
			if err := health(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		})
		s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
		stop := context.AfterFunc(ctx, func() { _ = s.Close() })
		defer stop()
		if err := s.Serve(l); ctx.Err() == nil {
			return onpath.Errorf(onpath.CodeUnavailable, "metrics: %w", err)
		}
		return nil
	}
}

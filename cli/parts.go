package cli

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/cli/config"
	"github.com/onpath/onpath/control"
	"github.com/onpath/onpath/control/archive"
	"github.com/onpath/onpath/control/dns"
	"github.com/onpath/onpath/control/notify"
	"github.com/onpath/onpath/control/translog"
	"github.com/onpath/onpath/internal/sealed"
	"github.com/onpath/onpath/internal/wholefile"
	"github.com/onpath/onpath/plan"
	"github.com/onpath/onpath/store/etcd"
)

// opened is what a server has opened of its machine: its ports, its store, its turn to lead,
// its keys and its files.
type opened struct {
	conf   *config.Server
	log    *slog.Logger
	ports  ports
	store  *etcd.Store
	lost   func(context.Context) error // ends when the turn to lead is lost
	socket net.Listener
	secret *config.Secrets
	public translog.Public
	days   *archive.Folder
	// restored is the file that says that the store was restored; "": it was not.
	restored string
	closes   []func() // the last one first
}

func (o *opened) close() {
	for _, f := range slices.Backward(o.closes) {
		f()
	}
}

// open opens all, in an order in which a server that waits for its turn to lead leaves the
// ports to the one before it.
func (o *opened) open(ctx context.Context) (err error) {
	conf, log := o.conf, o.log
	o.closes = append(o.closes, o.ports.close)
	waits := len(conf.Etcd.Endpoints) > 0
	if !waits {
		if err := o.ports.open(conf); err != nil {
			return err
		}
	}
	if err := makeStateDir("server.stateDir", conf.StateDir); err != nil {
		return err
	}
	if o.store, err = openStore(ctx, conf, log); err != nil {
		return err
	}
	o.closes = append(o.closes, func() { closing(log, "store", o.store.Close) })
	lost, resign, err := lead(ctx, conf, o.store, log)
	if err != nil {
		return err
	}
	o.lost, o.closes = lost, append(o.closes, resign)
	if waits {
		if err := o.ports.open(conf); err != nil {
			return err
		}
	}
	if o.socket, err = api.ListenUnix(conf.Socket); err != nil {
		return err
	}
	o.closes = append(o.closes, func() { _ = o.socket.Close() })
	if err := wholefile.Clean(conf.StateDir); err != nil {
		return onpath.Errorf(onpath.CodeUnavailable, "state folder: %w", err)
	}
	if o.secret, err = config.OpenSecrets(filepath.Join(conf.StateDir, "secret")); err != nil {
		return err
	}
	if o.public, err = openLog(ctx, conf, o.store, o.secret.Keys()[0], log); err != nil {
		return err
	}
	o.closes = append(o.closes, func() { closing(log, "log", o.public.Close) })
	if file := filepath.Join(conf.StateDir, restoredFile); fileExists(file) {
		o.restored = file
	}
	o.days, err = archive.Open(filepath.Join(conf.StateDir, "ledger"), o.public.Log)
	return err
}

// tasks makes the parts of a server, and gives what they do until the server ends.
func (o *opened) tasks(ctx context.Context) ([]func(context.Context) error, error) {
	conf, log := o.conf, o.log
	hub := session.NewHub(log, time.Now)
	o.closes = append(o.closes, hub.Close)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(control.GCPercent)
	}
	keeper, err := notify.Open(filepath.Join(conf.StateDir, "notifications"), log, time.Now, tenantSince(ctx, o.store))
	if err != nil {
		return nil, err
	}
	controller := control.New(control.Options{Store: o.public.Entries, Hub: hub, Log: log, Boot: sinceBoot, Archive: o.days,
		OnStored: keeper.OnStored, Restored: o.restored != "",
		Secrets: o.secret.Keys, Settings: plan.Settings{
			PrivatePools: plain(conf.PrivatePools), PublicPools: plain(conf.PublicPools)}})
	hooks := newWebhooks(conf, keeper, o.store, o.secret.Keys, log)
	registry := newRegistry()
	options := api.Options{Store: o.public.Entries, StoreUse: o.store.Use, Log: o.public,
		Controller: controller, Admission: controller, Pool: controller.Pool(), Past: controller.Pool().Past(), Hub: hub,
		Sealed: sealed.New(o.secret.Keys), Secrets: o.secret, SecretsPlanned: controller.PlannedSecrets,
		Notifications: keeper, WebhookState: hooks.State,
		Dir: conf.StateDir, Address: conf.Address,
		Version: versionString(), Functions: functionCheckers(), Metrics: registry, ImageQuota: int64(conf.ImageQuota), Logger: log}
	if o.ports.api != nil {
		if options.Authority, err = auth.OpenAuthority(filepath.Join(conf.StateDir, "auth"), time.Now); err != nil {
			return nil, err
		}
	}
	server, err := api.New(options)
	if err != nil {
		return nil, err
	}
	tasks := []func(context.Context) error{controller.Run, o.lost,
		func(ctx context.Context) error { return o.public.Run(ctx, o.public.Entries, log) },
		func(ctx context.Context) error { return keeper.Run(ctx, hub) }, hooks.Run,
		func(ctx context.Context) error { server.Run(ctx); return nil },
		func(ctx context.Context) error { return server.ServeUnix(ctx, o.socket) },
		func(ctx context.Context) error {
			select {
			case <-controller.Loaded():
				if o.restored != "" {
					closing(log, "the mark of a restore", func() error { return os.Remove(o.restored) })
				}
				hub.Attach(controller) // nodes come once their objects are known
				log.Info("server is up", "version", versionString(), "socket", conf.Socket, "listen", conf.Listen)
			case <-ctx.Done():
			}
			return nil
		}}
	if o.ports.api != nil {
		tasks = append(tasks, func(ctx context.Context) error { return server.ServeTLS(ctx, o.ports.api) })
	}
	if o.ports.metrics != nil {
		tasks = append(tasks, metricsTask(o.ports.metrics, registry, func() error { return controller.Ready(ctx) }))
	}
	if o.ports.dns != nil {
		names := controller.Names()
		answers := dns.New(dns.Options{Directory: names.Directory, Seen: names.Seen, Name: conf.DNS.Name, Clock: time.Now})
		tasks = append(tasks, func(ctx context.Context) error { return answers.Serve(ctx, o.ports.udp, o.ports.dns) })
	}
	return tasks, nil
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// tenantSince says since when a tenant is there; two always are.
func tenantSince(ctx context.Context, s *etcd.Store) func(name string) (since time.Time, known bool, err error) {
	return func(name string) (since time.Time, known bool, err error) {
		o, err := s.Get(ctx, onpath.Key{Kind: onpath.KindTenant, Name: name})
		switch {
		case onpath.CodeOf(err) == onpath.CodeNotFound:
			return since, name == onpath.DefaultTenant || name == onpath.OperatorTenant, nil
		case err != nil:
			return since, false, err
		}
		return o.Meta().Created, true, nil
	}
}

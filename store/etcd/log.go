package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapTo gives etcd a logger that writes its warnings and errors to log; its
// many informational lines become debug lines. onFatal is called instead of
// ending the process, and the goroutine that asked for it ends; nil: none.
// Until up is true it is called instead of panics, too: what etcd reads is
// damaged then.
// Until up is true (nil: always) warnings are debug lines too: they are about
// the configuration, and meant for clusters. While first is true (nil: never)
// so is what etcd says about a store that is only some seconds old.
func zapTo(log *slog.Logger, up, first *atomic.Bool, onFatal func(message string)) *zap.Logger {
	return zap.New(&core{log: log.With("part", "etcd"), up: up, first: first}, zap.WithFatalHook(fatalHook{onFatal}),
		zap.WithPanicHook(panicHook{up, onFatal}))
}

type core struct {
	log    *slog.Logger
	up     *atomic.Bool
	first  *atomic.Bool
	fields []zapcore.Field
}

func (c *core) Enabled(l zapcore.Level) bool {
	return l >= zapcore.DPanicLevel || c.log.Enabled(context.Background(), c.level(l))
}

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{log: c.log, up: c.up, first: c.first, fields: append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

func (c *core) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range append(c.fields[:len(c.fields):len(c.fields)], fields...) {
		f.AddTo(enc)
	}
	attrs := make([]slog.Attr, 0, len(enc.Fields))
	for k, v := range enc.Fields {
		attrs = append(attrs, slog.Any(k, v))
	}
	level := c.level(e.Level)
	if c.first != nil && c.first.Load() && young(e.Message, enc.Fields["error"]) {
		level = slog.LevelDebug
	}
	c.log.LogAttrs(context.Background(), level, e.Message, attrs...)
	return nil
}

// young recognizes what etcd complains of until a new store has kept the term
// of an election for the first time. It repeats it until then, and no longer.
func young(message string, cause any) bool {
	switch message {
	case "failed to update storage version", "Failed to detect schema version":
		return strings.Contains(fmt.Sprint(cause), "missing term information")
	}
	return false
}

func (c *core) Sync() error { return nil }

// level keeps etcd quiet: it reports ordinary work as info, and much that is
// ordinary for a single embedded member as a warning.
func (c *core) level(l zapcore.Level) slog.Level {
	switch {
	case l >= zapcore.ErrorLevel:
		return slog.LevelError
	case l == zapcore.WarnLevel && (c.up == nil || c.up.Load()):
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

type panicHook struct {
	up   *atomic.Bool
	call func(message string)
}

func (h panicHook) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	if h.up == nil || h.up.Load() {
		panic(e.Message)
	}
	fatalHook{h.call}.OnWrite(e, fields)
}

type fatalHook struct{ call func(message string) }

func (h fatalHook) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	message := e.Message
	for _, f := range fields {
		if f.Key == "error" {
			if err, ok := f.Interface.(error); ok {
				message += ": " + err.Error()
			}
		}
	}
	if h.call != nil {
		h.call(message)
	}
	runtime.Goexit()
}

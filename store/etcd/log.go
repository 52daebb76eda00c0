package etcd

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapTo gives etcd a logger that writes its warnings and errors to log; its
// many informational lines become debug lines. onFatal is called instead of
// ending the process, and the goroutine that asked for it ends; nil: none.
// Until up is true (nil: always) warnings are debug lines too: they are about
// the configuration, and meant for clusters.
func zapTo(log *slog.Logger, up *atomic.Bool, onFatal func(message string)) *zap.Logger {
	return zap.New(&core{log: log.With("part", "etcd"), up: up}, zap.WithFatalHook(fatalHook{onFatal}))
}

type core struct {
	log    *slog.Logger
	up     *atomic.Bool
	fields []zapcore.Field
}

func (c *core) Enabled(l zapcore.Level) bool {
	return l >= zapcore.DPanicLevel || c.log.Enabled(context.Background(), c.level(l))
}

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{log: c.log, up: c.up, fields: append(c.fields[:len(c.fields):len(c.fields)], fields...)}
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
	c.log.LogAttrs(context.Background(), c.level(e.Level), e.Message, attrs...)
	return nil
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

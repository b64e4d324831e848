package handshake

import "testing"

func BenchmarkRound(b *testing.B) {
	for _, p := range []Policy{Parallel, Serial} {
		b.Run(p.String(), func(b *testing.B) {
			d, err := New(with(func(c *Config) { c.Policy = p }))
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := d.Round(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

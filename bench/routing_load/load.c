/* A load that checks every answer. `load PORT CONNECTIONS RATE HEADER USERS ORDER`
 *
 * USERS has a line for each user: what stands in HEADER, the user key that the instance must see (`-`: any), and two numbers of
 * instances: the owner before and after a change (-1: anybody; -2: whoever answers first, ever after). ORDER is u32 indices into
 * it, asked in turn. RATE 0 is a closed loop; otherwise requests are due at RATE a second, whatever became of the others, and
 * their latency begins when they were due, so that a stall is felt by all that waited behind it.
 *
 * Windows are opened by lines on stdin: `window NAME MASK WATCHED`, MASK 1 before, 2 after, 4 anybody. A request belongs to the
 * window in which it was sent; its answer must be right for that window or for the one in which it came. `end` prints one line
 * of JSON and ends. Times are of CLOCK_MONOTONIC. A request whose kept connection closes before the first byte of the answer is
 * sent again once on a new one, as HTTP clients do, and counted as `again`. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "users.h"
#include "windows.h"

#define TIMEOUT_NS 5000000000LL
#define ANYBODY (-1)
#define LEARN (-2)
enum { BEFORE = 1, AFTER = 2, ANY = 4 };

struct connection {
	int fd, connecting, busy, kept, tries, got;
	struct window *window;
	struct user *user;
	int64_t due, sent;
	char buffer[8192];
};

static struct connection *connections;
static int *idle, idle_first, idle_count, total;
static size_t turn;
static struct sockaddr_in target;
static int loop, rate, ending, complaints;
static int64_t began, issued;

/* Connections ----------------------------------------------------------------------------------------------------------- */

static void send_request(struct connection *c);

static void rest(struct connection *c)
{
	c->busy = 0;
	idle[(idle_first + idle_count++) % total] = c - connections;
}

static void cut(struct connection *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
	c->connecting = c->kept = c->got = 0;
}

static void fail(struct connection *c, const char *why)
{
	int64_t at = now();
	struct window *w = c->window;
	w->failed++;
	w->first_failed = w->first_failed ? w->first_failed : at;
	w->last_failed = at;
	if (complaints++ < 5)
		fprintf(stderr, "window %s: %s, user key %.32s\n", w->name, why, c->user->key);
	cut(c);
	rest(c);
}

static void open_connection(struct connection *c)
{
	int one = 1;
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT, .data.fd = c - connections };
	c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (c->fd < 0)
		die("socket");
	setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	c->connecting = 1;
	if (connect(c->fd, (struct sockaddr *)&target, sizeof target) && errno != EINPROGRESS) {
		fail(c, "refused");
		return;
	}
	if (epoll_ctl(loop, EPOLL_CTL_ADD, c->fd, &event))
		die("epoll_ctl");
}

static void broken(struct connection *c, const char *why)
{
	if (c->kept && !c->got && c->tries == 1) {
		c->window->again++;
		cut(c);
		send_request(c);
	} else
		fail(c, why);
}

static void send_request(struct connection *c)
{
	if (c->fd < 0) {
		open_connection(c);
		return; /* sent once it is open */
	}
	c->got = 0;
	c->tries++;
	c->sent = now();
	if (rate == 0 && c->tries == 1)
		c->due = c->sent;
	if (send(c->fd, c->user->request, c->user->length, MSG_NOSIGNAL) != c->user->length)
		broken(c, "could not be sent");
}

static void issue(int64_t due)
{
	struct connection *c = &connections[idle[idle_first]];
	idle_first = (idle_first + 1) % total;
	idle_count--;
	c->busy = 1;
	c->tries = 0;
	c->due = due;
	c->sent = now();
	c->window = now_open;
	c->user = &users[order[turn++ % order_length]];
	now_open->sent++;
	send_request(c);
}

/* Answers --------------------------------------------------------------------------------------------------------------- */

static int allowed(struct user *u, int mask, int who)
{
	if (mask & ANY)
		return 1;
	for (int i = 0; i < 2; i++) {
		if (!(mask & (1 << i)))
			continue;
		if (u->owner[i] == LEARN)
			u->owner[i] = who;
		if (u->owner[i] == ANYBODY || u->owner[i] == who)
			return 1;
	}
	return 0;
}

static const char *header(const char *head, const char *end, const char *name)
{
	size_t length = strlen(name);
	for (const char *line = head; line && line < end; line = memchr(line, '\n', end - line)) {
		line += *line == '\n';
		if ((size_t)(end - line) > length && !strncasecmp(line, name, length))
			return line + length;
	}
	return NULL;
}

static void judge(struct connection *c, const char *end, const char *body)
{
	int64_t at = now(), took = at - c->due;
	struct window *w = c->window;
	int who = atoi(body);
	const char *named = header(c->buffer, end, "x-gr-instance: i-");
	int right = allowed(c->user, w->mask | now_open->mask, who);
	if (c->user->key[0] != '-' && strncmp(body + 6, c->user->key, 32))
		right = 0;
	if (named && atoi(named) != who)
		right = 0;
	if (right)
		w->ok++;
	else {
		w->wrong++;
		w->first_wrong = w->first_wrong ? w->first_wrong : at;
		w->last_wrong = at;
		if (complaints++ < 5)
			fprintf(stderr, "window %s: %.38s answered, %d or %d should have, user key %.32s\n", w->name, body, c->user->owner[0],
				c->user->owner[1], c->user->key);
	}
	if (who == now_open->watched && c->sent > now_open->began) {
		now_open->seen++;
		now_open->last_seen = c->sent > now_open->last_seen ? c->sent : now_open->last_seen;
	}
	w->histogram[bucket_of(took)]++;
	w->slowest = took > w->slowest ? took : w->slowest;
}

static void receive(struct connection *c)
{
	int got = recv(c->fd, c->buffer + c->got, sizeof c->buffer - 1 - c->got, 0);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (!c->busy) { /* closed while nothing was asked, as either side may */
		cut(c);
		return;
	}
	if (got <= 0) {
		broken(c, got ? "reset" : "closed without an answer");
		return;
	}
	c->got += got;
	c->buffer[c->got] = 0;
	char *end = memmem(c->buffer, c->got, "\r\n\r\n", 4);
	if (!end)
		return;
	const char *length = header(c->buffer, end, "content-length: ");
	if (strncmp(c->buffer, "HTTP/1.1 200", 12) || !length) {
		char why[32];
		snprintf(why, sizeof why, "%.20s", c->buffer);
		fail(c, why);
		return;
	}
	if (c->got < end + 4 - c->buffer + atoi(length))
		return;
	judge(c, end, end + 4);
	c->kept = 1;
	c->got = 0;
	if (header(c->buffer, end, "connection: close"))
		cut(c);
	rest(c);
}

static void event_of(struct connection *c, uint32_t events)
{
	if (c->fd < 0)
		return;
	if (c->connecting) {
		int error = 0;
		socklen_t size = sizeof error;
		struct epoll_event event = { .events = EPOLLIN, .data.fd = c - connections };
		getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
		if (error) {
			fail(c, "refused");
			return;
		}
		if (!(events & EPOLLOUT))
			return;
		c->connecting = 0;
		epoll_ctl(loop, EPOLL_CTL_MOD, c->fd, &event);
		send_request(c);
		return;
	}
	receive(c);
}

static void expire(int64_t at)
{
	for (int i = 0; i < total; i++)
		if (connections[i].busy && at - connections[i].sent > TIMEOUT_NS)
			fail(&connections[i], "no answer in time");
}

/* Commands and reports -------------------------------------------------------------------------------------------------- */

static void open_window(const char *name, int mask, int watched)
{
	if (now_open == &windows[MAX_WINDOWS - 1])
		die("too many windows");
	struct window *next = now_open ? now_open + 1 : windows;
	if (now_open)
		now_open->ended = now();
	snprintf(next->name, sizeof next->name, "%s", name);
	next->mask = mask;
	next->watched = watched;
	next->began = now();
	now_open = next;
}

static void command(char *line)
{
	char name[32];
	int mask, watched;
	if (sscanf(line, "window %31s %d %d", name, &mask, &watched) == 3)
		open_window(name, mask, watched);
	else if (!strncmp(line, "end", 3))
		ending = 1;
	else {
		fprintf(stderr, "not a command: %s\n", line);
		exit(2);
	}
	printf("at %lld\n", (long long)now_open->began);
	fflush(stdout);
}

static void read_commands(void)
{
	static char text[1024];
	static int length;
	int got = read(0, text + length, sizeof text - 1 - length);
	if (got <= 0)
		exit(1); /* whoever asked for this load is gone */
	length += got;
	text[length] = 0;
	char *end;
	while ((end = strchr(text, '\n'))) {
		*end = 0;
		command(text);
		length -= end + 1 - text;
		memmove(text, end + 1, length + 1);
	}
}

/* Setting up ------------------------------------------------------------------------------------------------------------ */

static void run(void)
{
	struct epoll_event events[512], stdin_event = { .events = EPOLLIN, .data.fd = -1 }, timer_event = { .events = EPOLLIN, .data.fd = -2 };
	int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	int64_t looked = now(), give_up = 0, free_since = now();
	epoll_ctl(loop, EPOLL_CTL_ADD, 0, &stdin_event);
	epoll_ctl(loop, EPOLL_CTL_ADD, timer, &timer_event);
	began = now();
	for (;;) {
		int64_t at = now();
		if (at - looked > 500000000LL) {
			expire(at);
			looked = at;
		}
		if (ending && !give_up)
			give_up = at + 1000000000LL;
		if (ending && (idle_count == total || at > give_up))
			return;
		if (!ending && rate == 0)
			for (int ready = idle_count; ready > 0; ready--) /* once each: one that is refused is not asked again at once */
				issue(at);
		while (!ending && rate && idle_count && began + issued * 1000000000LL / rate <= at) {
			int64_t due = began + issued * 1000000000LL / rate, late = at - (due > free_since ? due : free_since);
			now_open->late = late > now_open->late ? late : now_open->late; /* with a connection at hand: by its own fault */
			issue(due);
			issued++;
		}
		int wait_ms = 100;
		if (rate && !ending && idle_count) {
			int64_t next = began + issued * 1000000000LL / rate;
			struct itimerspec when = { .it_value = { next / 1000000000LL, next % 1000000000LL } };
			if (next > now())
				timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
			else
				wait_ms = 0;
		}
		if (rate == 0 && idle_count && !ending)
			wait_ms = 1;
		int none = idle_count == 0, ready = epoll_wait(loop, events, 512, wait_ms);
		free_since = none ? now() : free_since;
		for (int i = 0; i < ready; i++) {
			uint64_t ticks;
			if (events[i].data.fd == -1)
				read_commands();
			else if (events[i].data.fd == -2)
				ready = read(timer, &ticks, sizeof ticks) < 0 ? ready : ready;
			else
				event_of(&connections[events[i].data.fd], events[i].events);
		}
	}
}

int main(int argc, char **argv)
{
	if (argc != 7) {
		fprintf(stderr, "use: load PORT CONNECTIONS RATE HEADER USERS ORDER\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGPIPE, SIG_IGN);
	target = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	total = atoi(argv[2]);
	rate = atoi(argv[3]);
	read_users(argv[5], argv[4]);
	read_order(argv[6]);
	loop = epoll_create1(EPOLL_CLOEXEC);
	connections = calloc(total, sizeof *connections);
	idle = calloc(total, sizeof *idle);
	for (int i = 0; i < total; i++) {
		connections[i].fd = -1;
		rest(&connections[i]);
	}
	open_window("warm-up", BEFORE, -1);
	printf("at %lld\n", (long long)now_open->began);
	fflush(stdout);
	run();
	now_open->ended = now();
	report(now_open);
	return 0;
}

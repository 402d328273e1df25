/* Many toy instances in one process: COUNT listening ports on loopback, each answering every request with its own number and the
 * user key that it was given. `backend FIRST COUNT [PORT]`: the instances are numbered from FIRST; without PORT, which needs
 * COUNT 1, the ports are free ones. Prints one line with the ports; ends with its parent. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define BODY 100
#define MAX_FDS 65536
#define KEY_HEADER "x-gr-user-key: "

struct peer {
	int listens; /* a listening socket, otherwise a connection */
	int number;
	int length;
	char buffer[4096];
};

static struct peer *peers[MAX_FDS];
static int loop;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void watch(int fd, int listens, int number)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };
	if (fd >= MAX_FDS || !(peers[fd] = peers[fd] ? peers[fd] : malloc(sizeof(struct peer))))
		die("too many connections");
	peers[fd]->listens = listens;
	peers[fd]->number = number;
	peers[fd]->length = 0;
	if (epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event))
		die("epoll_ctl");
}

static int listen_on(int number, int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof address;
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one))
		die("socket");
	if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 512) || getsockname(fd, (struct sockaddr *)&address, &size))
		die("bind");
	watch(fd, 1, number);
	return ntohs(address.sin_port);
}

static void take(int listener)
{
	int one = 1, fd;
	while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		watch(fd, 0, peers[listener]->number);
	}
}

/* Answers one request that lies complete in the buffer; 0 when the connection is to be closed. */
static int answer(int fd, const char *head, int length)
{
	char out[256];
	const char *key = memmem(head, length, KEY_HEADER, sizeof KEY_HEADER - 1), *end;
	int key_length = 1;
	if (key) {
		key += sizeof KEY_HEADER - 1;
		end = memchr(key, '\r', head + length - key);
		key_length = end && end - key <= 40 ? end - key : 1;
	} else
		key = "-";
	int head_length = sprintf(out, "HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n", BODY);
	memset(out + head_length, ' ', BODY);
	int used = sprintf(out + head_length, "%05d %.*s", peers[fd]->number, key_length, key);
	out[head_length + used] = ' ';
	return send(fd, out, head_length + BODY, MSG_NOSIGNAL) == head_length + BODY;
}

static void serve(int fd)
{
	struct peer *p = peers[fd];
	int got = recv(fd, p->buffer + p->length, sizeof p->buffer - p->length, 0);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		close(fd);
		return;
	}
	p->length += got;
	char *end;
	while ((end = memmem(p->buffer, p->length, "\r\n\r\n", 4))) {
		int length = end + 4 - p->buffer;
		if (!answer(fd, p->buffer, length)) {
			close(fd);
			return;
		}
		memmove(p->buffer, p->buffer + length, p->length - length);
		p->length -= length;
	}
	if (p->length == sizeof p->buffer)
		close(fd);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "use: backend FIRST COUNT [PORT]\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGPIPE, SIG_IGN);
	loop = epoll_create1(EPOLL_CLOEXEC);
	int first = atoi(argv[1]), count = atoi(argv[2]), port = argc > 3 ? atoi(argv[3]) : 0;
	for (int i = 0; i < count; i++)
		printf("%d%c", listen_on(first + i, port), i + 1 < count ? ' ' : '\n');
	fflush(stdout);
	struct epoll_event events[256];
	for (;;) {
		int ready = epoll_wait(loop, events, 256, -1);
		for (int i = 0; i < ready; i++) {
			int fd = events[i].data.fd;
			if (peers[fd]->listens)
				take(fd);
			else
				serve(fd);
		}
	}
}
